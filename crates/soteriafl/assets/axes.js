/* Numbers, marks and ranges that the charts of all pages share. */
"use strict";
/* Numbers as the rest of the page writes them. */
function plain(value, digits) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e-3 && size < 1e7) {
    const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
    return trim(value.toFixed(Math.min(decimals, 20)));
  }
  const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
  const power = String(Number(exponent)).replace(/[-0-9]/g, c => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]));
  const factor = trim(mantissa);
  return (factor === "1" ? "" : factor === "-1" ? "-" : factor + "×") + "10" + power;
}
/* Epsilon is never written below its value. */
function roundedUp(value) {
  if (!(value > 0)) return plain(value, 4);
  const scale = Math.pow(10, 3 - Math.floor(Math.log10(value)));
  return plain(Math.ceil(value * scale * (1 - 1e-12)) / scale, 4);
}
function trim(text) {
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}
function prefixed(value, unit) {
  if (unit === "" && Math.abs(value) < 1e4) return plain(value, 4);
  let index = 0;
  while (Math.abs(value) >= 999.5 && index < 6) {
    value /= 1000;
    index += 1;
  }
  const ending = ["", "k", "M", "G", "T", "P", "E"][index] + unit;
  return plain(value, 3) + (unit === "" ? "" : " ") + ending;
}

/* Room for the labels of a vertical axis: as wide as the longest needs, and no less than given. */
function roomFor(least) {
  return (_, labels) => Math.max(least, ...(labels || []).map(label => 14 + 7 * String(label === null ? "" : label).length));
}

/* Marks: round numbers, and on logarithmic axes powers of ten or 1, 2, 5 times those. */
function linearTicks(low, high, target) {
  const rough = (high - low) / target;
  const power = Math.pow(10, Math.floor(Math.log10(rough)));
  const step = [1, 2, 2.5, 5, 10].map(f => f * power).find(s => s >= rough * 0.9) || rough;
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9 && ticks.length < 50; i++) {
    ticks.push(Number((i * step).toPrecision(12)));
  }
  return ticks;
}
function logTicks(low, high, target) {
  const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
  const ticks = [];
  if (last - first >= 2) {
    const stride = Math.floor((last - first) / target) + 1;
    for (let p = first; p <= last; p++) if (p % stride === 0) ticks.push(Number("1e" + p));
    return ticks;
  }
  for (let p = first - 1; p <= last; p++) {
    for (const factor of [1, 2, 5]) {
      const value = Number(factor + "e" + p);
      if (value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9)) ticks.push(value);
    }
  }
  return ticks.length >= 3 ? ticks : linearTicks(low, high, target);
}

function range(log, padded) {
  return (_, low, high) => {
    if (low === null || high === null) return log ? [0.1, 1] : [0, 1];
    if (log) {
      if (!(low > 0)) low = high > 0 ? high / 10 : 0.1;
      if (!(high > low)) return [low / 2, low * 2];
      const pad = padded ? Math.pow(high / low, 0.06) : 1;
      return [low / pad, high * pad];
    }
    if (low === high) {
      const pad = low === 0 ? 1 : Math.abs(low) * 0.1;
      return [low - pad, high + pad];
    }
    const pad = padded ? (high - low) * 0.07 : 0;
    return [padded && low >= 0 && low < 0.3 * high ? 0 : low - pad, high + pad];
  };
}
