/* The charts of the report: four uPlot figures over the columns in #run-data. */
(function () {
  "use strict";
  const data = JSON.parse(document.getElementById("run-data").textContent);
  const root = document.documentElement;

  const short = value => plain(value, 4);
  const percent = value => (100 * value).toFixed(2) + " %";
  const CHARTS = {
    utility: {
      write: short,
      series: [
        { key: "grad_norm_sq", label: "squared norm", color: "--c2", width: 1.25 },
        { key: "utility", label: "utility", color: "--c1", width: 2.25 },
      ],
    },
    loss: { write: short, series: [{ key: "loss", label: "loss", color: "--c3", width: 2.25 }] },
    accuracy: { write: percent, tick: value => plain(100 * value, 5) + " %", series: [{ key: "test_accuracy", label: "test accuracy", color: "--c4", width: 2.25 }] },
    epsilon: {
      write: roundedUp,
      series: [
        { key: "target", label: "target", color: "--c6", width: 1.5, dash: [6, 4] },
        { key: "epsilon", label: "epsilon spent", color: "--c5", width: 2.25, stepped: true },
      ],
    },
  };
  const HORIZONTAL = {
    round: { label: "round", write: value => String(value), tick: value => prefixed(value, "") },
    uplink_bytes: { label: "sent", write: value => prefixed(value, "B"), tick: value => prefixed(value, "B") },
    paper_bits: { label: "paper bits", write: value => prefixed(value, "bit"), tick: value => prefixed(value, "bit") },
  };

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

  /* The columns of a chart, without what its axes cannot show. */
  function columns(chart) {
    const xs = data[horizontal];
    const rows = xs.map((_, i) => i).filter(i => xs[i] !== null && (!chart.log.x || xs[i] > 0));
    const ys = chart.series.map(series => rows.map(i => {
      const value = series.key === "target" ? data.target : data[series.key][i];
      return value === null || (chart.log.y && !(value > 0)) ? null : value;
    }));
    return [rows.map(i => xs[i])].concat(ys);
  }

  function build(chart) {
    const hidden = chart.plot ? chart.plot.series.map(series => series.show === false) : [];
    if (chart.plot) chart.plot.destroy();
    chart.frame.textContent = "";
    const css = getComputedStyle(root);
    const color = name => css.getPropertyValue(name).trim();
    const table = columns(chart);
    const last = table[0].length - 1;
    const x = HORIZONTAL[horizontal];
    const write = (format, value) => (value === null || value === undefined ? "–" : format(value));
    const axis = (vertical, log, format, size, space) => ({
      stroke: color("--muted"), font: "12px " + getComputedStyle(document.body).fontFamily, size, gap: vertical ? 6 : 4,
      grid: { stroke: color("--grid"), width: 1, show: vertical },
      ticks: { stroke: color("--grid"), width: 1, size: vertical ? 0 : 5 },
      splits: (u, _, low, high) => {
        const room = Math.max(2, Math.floor((vertical ? u.over.clientHeight || 220 : u.over.clientWidth || 400) / space));
        return log ? logTicks(low, high, room) : linearTicks(low, high, room);
      },
      values: (_, ticks) => ticks.map(format), filter: (_, ticks) => ticks,
    });
    chart.plot = new uPlot({
      width: Math.max(200, chart.frame.clientWidth), height: 270, padding: [10, 18, 0, 0],
      scales: {
        x: { time: false, distr: chart.log.x ? 3 : 1, range: range(chart.log.x, false) },
        y: { distr: chart.log.y ? 3 : 1, range: range(chart.log.y, true) },
      },
      cursor: { y: false, sync: { key: "run" }, points: { size: 8 }, drag: { x: true, y: false } },
      axes: [
        axis(false, chart.log.x, x.tick, 34, 80),
        axis(true, chart.log.y, chart.tick || (value => prefixed(value, "")), 58, 44),
      ],
      series: [{ label: x.label, value: (_, value) => write(x.write, value) }].concat(chart.series.map((series, i) => ({
        label: series.label, stroke: color(series.color), width: series.width, dash: series.dash, show: !hidden[i + 1],
        spanGaps: false, value: (_, value) => write(chart.write, value),
        /* Between two rows the later epsilon is the safe one. */
        paths: series.stepped ? uPlot.paths.stepped({ align: -1 }) : undefined,
        points: { show: table[0].length < 3 ? true : undefined, size: 6, fill: color(series.color) },
      }))),
      hooks: {
        /* Without a cursor the legend tells where the run ended. */
        setCursor: [u => { if (u.cursor.idx === null || u.cursor.left < 0) u.setLegend({ idx: last }, false); }],
        ready: [u => u.setLegend({ idx: last }, false)],
      },
    }, table, chart.frame);
  }

  let horizontal = "round";
  const charts = [];
  for (const figure of document.querySelectorAll("[data-chart]")) {
    const kind = CHARTS[figure.dataset.chart];
    const shown = kind.series.filter(series => (series.key === "target" ? data.target !== null : true));
    const chart = Object.assign({}, kind, { series: shown, frame: figure.querySelector(".plot"), log: {}, plot: null });
    for (const button of figure.querySelectorAll("[data-log]")) {
      const which = button.dataset.log;
      chart.log[which] = button.getAttribute("aria-pressed") === "true";
      button.addEventListener("click", () => {
        chart.log[which] = !chart.log[which];
        button.setAttribute("aria-pressed", String(chart.log[which]));
        build(chart);
      });
    }
    charts.push(chart);
  }
  const buildAll = () => charts.forEach(build);

  const choices = document.querySelectorAll("#horizontal button");
  for (const button of choices) {
    button.addEventListener("click", () => {
      horizontal = button.dataset.x;
      choices.forEach(other => other.setAttribute("aria-pressed", String(other === button)));
      buildAll();
    });
  }

  buildAll();
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    charts.forEach(chart => chart.plot.setSize({ width: Math.max(200, chart.frame.clientWidth), height: 270 }));
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", buildAll);
  /* Paper is light and narrow, whatever the screen is. */
  window.addEventListener("beforeprint", () => { root.classList.add("printing"); buildAll(); });
  window.addEventListener("afterprint", () => { root.classList.remove("printing"); buildAll(); });
})();
