/* The figures of a story: uPlot charts over the curves in #story-data, with shared keys above each figure. */
(function () {
  "use strict";
  const figures = JSON.parse(document.getElementById("story-data").textContent);
  const root = document.documentElement;
  const scheme = window.matchMedia("(prefers-color-scheme: dark)");
  /* Lighter on a dark page. */
  const LIGHTER = {
    "#3b5bdb": "#8ea4ff", "#e8590c": "#ff9352", "#2b8a3e": "#63cf7d", "#9c36b5": "#d68be8", "#0c8599": "#4fc3d6",
    "#c92a2a": "#ff8080", "#b08900": "#e6bf3d", "#5c636a": "#a4adb8", "#1f2430": "#f2f4f8",
  };
  const PALETTE = ["#3b5bdb", "#e8590c", "#2b8a3e", "#9c36b5", "#0c8599", "#c92a2a", "#b08900", "#5c636a"];
  const dark = () => scheme.matches && !root.classList.contains("printing");
  const shade = color => (dark() && LIGHTER[color]) || color;
  const fade = color => color + (dark() ? "38" : "26");

  /* The position of a label among all labels of a figure gives its colour where it names none. */
  function labels(figure) {
    const found = [];
    for (const panel of figure.panels) for (const series of panel.series) {
      let entry = found.find(other => other.label === series.label);
      if (!entry) {
        entry = { label: series.label, group: series.group, color: series.color || PALETTE[found.length % PALETTE.length], on: true };
        found.push(entry);
      }
      series.entry = entry;
    }
    return found;
  }

  /* Curves with their own x on one axis: the union of all x, with gaps that are spanned. */
  function table(series, log) {
    const xs = [...new Set(series.flatMap(one => one.x))].filter(x => !log.x || x > 0).sort((a, b) => a - b);
    const at = new Map(xs.map((x, i) => [x, i]));
    const column = (one, values) => {
      const out = new Array(xs.length).fill(undefined);
      one.x.forEach((x, i) => {
        if (!at.has(x)) return;
        const value = values[i];
        out[at.get(x)] = value === null || (log.y && !(value > 0)) ? null : value;
      });
      return out;
    };
    const columns = [xs];
    for (const one of series) {
      columns.push(column(one, one.y));
      if (one.low) {
        const floor = Math.min(...one.y.filter(y => y !== null && (!log.y || y > 0)));
        columns.push(column(one, one.high));
        columns.push(column(one, one.low.map(low => (log.y && low !== null && !(low > 0) ? floor / 10 : low))));
      }
    }
    return columns;
  }

  function nearest(xs, ys, x) {
    let best = null, gap = Infinity;
    for (let i = 0; i < xs.length; i++) {
      const distance = Math.abs(xs[i] - x);
      if (ys[i] !== null && distance < gap) { gap = distance; best = i; }
    }
    return best;
  }

  function tooltip(chart) {
    const tip = document.createElement("div");
    tip.className = "tip";
    chart.frame.appendChild(tip);
    const written = value => (chart.title.includes("accuracy") ? plain(100 * value, 4) + " %" : plain(value, 4));
    return u => {
      const { left, top, idx } = u.cursor;
      if (idx === null || idx === undefined || left < 0) { tip.style.display = "none"; return; }
      const x = u.posToVal(left, "x");
      const bits = chart.x.includes("bits");
      tip.textContent = "";
      const head = document.createElement("b");
      head.textContent = bits ? prefixed(x, "bit") : "round " + Math.round(x);
      tip.appendChild(head);
      for (const one of chart.series.filter(series => series.entry.on)) {
        if (x < one.x[0] * 0.999 || x > one.x[one.x.length - 1] * 1.02 + 0.5) continue;
        const i = nearest(one.x, one.y, x);
        if (i === null) continue;
        const row = document.createElement("div"), mark = document.createElement("i");
        const name = document.createElement("span"), value = document.createElement("span");
        mark.style.borderColor = shade(one.entry.color);
        if (one.dashed) mark.style.borderTopStyle = "dashed";
        name.textContent = one.label;
        const spread = one.high && one.high[i] !== null ? " ± " + plain(one.high[i] - one.y[i], 2) : "";
        value.textContent = written(one.y[i]) + (chart.title.includes("accuracy") ? "" : spread);
        row.append(mark, name, value);
        tip.appendChild(row);
      }
      tip.style.display = "block";
      const box = u.over.getBoundingClientRect(), frame = chart.frame.getBoundingClientRect();
      const right = left > box.width / 2;
      tip.style.left = (box.left - frame.left + left + (right ? -tip.offsetWidth - 14 : 14)) + "px";
      tip.style.top = Math.max(0, Math.min(box.top - frame.top + top - 20, frame.height - tip.offsetHeight)) + "px";
    };
  }

  function build(chart) {
    if (chart.plot) chart.plot.destroy();
    chart.frame.textContent = "";
    const css = getComputedStyle(root);
    const color = name => css.getPropertyValue(name).trim();
    const shown = chart.series.filter(series => series.entry.on);
    const columns = table(shown, chart.log);
    const bits = chart.x.includes("bits"), percent = chart.title.includes("accuracy");
    const series = [{}], bands = [];
    for (const one of shown) {
      const paint = shade(one.entry.color);
      series.push({
        stroke: paint, width: one.bold ? 3 : 2, dash: one.dashed ? [6, 4] : undefined, spanGaps: true,
        points: { show: one.x.length < 3 ? true : false, size: 6, fill: paint },
      });
      if (one.low) {
        const edge = { stroke: "transparent", width: 0, spanGaps: true, points: { show: false } };
        bands.push({ series: [series.length, series.length + 1], fill: fade(paint) });
        series.push(edge, Object.assign({}, edge));
      }
    }
    const axis = (vertical, log, format, size, space) => ({
      stroke: color("--muted"), font: "12px " + getComputedStyle(document.body).fontFamily, size: vertical ? roomFor(size) : size, gap: vertical ? 6 : 4,
      grid: { stroke: color("--grid"), width: 1, show: vertical },
      ticks: { stroke: color("--grid"), width: 1, size: vertical ? 0 : 5 },
      splits: (u, _, low, high) => {
        const room = Math.max(2, Math.floor((vertical ? u.over.clientHeight || 220 : u.over.clientWidth || 400) / space));
        return log ? logTicks(low, high, room) : linearTicks(low, high, room);
      },
      values: (_, ticks) => ticks.map(format), filter: (_, ticks) => ticks,
    });
    const tip = tooltip(chart);
    chart.plot = new uPlot({
      width: Math.max(200, chart.frame.clientWidth), height: 260, padding: [10, 18, 0, 0], legend: { show: false },
      scales: {
        x: { time: false, distr: chart.log.x ? 3 : 1, range: range(chart.log.x, false) },
        y: { distr: chart.log.y ? 3 : 1, range: range(chart.log.y, true) },
      },
      cursor: { y: false, points: { show: false }, drag: { x: true, y: false } },
      axes: [
        axis(false, chart.log.x, value => prefixed(value, bits ? "bit" : ""), 34, 80),
        axis(true, chart.log.y, value => (percent ? plain(100 * value, 5) + " %" : prefixed(value, "")), 58, 44),
      ],
      series, bands, hooks: { setCursor: [tip] },
    }, columns, chart.frame);
    const hide = () => { for (const box of chart.frame.querySelectorAll(".tip")) box.style.display = "none"; };
    chart.plot.over.addEventListener("mouseleave", hide);
  }

  function keys(holder, entries, shown, rebuild) {
    const groups = [...new Set(entries.map(entry => entry.group).filter(group => group))];
    for (const entry of entries) entry.on = shown.length === 0 || !entry.group || shown.includes(entry.group);
    const buttons = [];
    const refresh = () => {
      for (const [button, entry] of buttons) {
        button.setAttribute("aria-pressed", String(entry.on));
        button.querySelector("i").style.color = shade(entry.color);
      }
      for (const button of holder.querySelectorAll(".group")) {
        button.setAttribute("aria-pressed", String(entries.some(entry => entry.group === button.dataset.group && entry.on)));
      }
    };
    const add = (text, act) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(text);
      button.addEventListener("click", () => { act(); refresh(); rebuild(); });
      holder.appendChild(button);
      return button;
    };
    if (groups.length > 1) {
      for (const group of groups) {
        const button = add(group, () => {
          const members = entries.filter(entry => entry.group === group);
          const on = !members.some(entry => entry.on);
          members.forEach(entry => { entry.on = on; });
        });
        button.className = "group";
        button.dataset.group = group;
      }
      holder.appendChild(Object.assign(document.createElement("span"), { className: "rule" }));
    }
    for (const entry of entries) {
      const button = add(entry.label, () => { entry.on = !entry.on; });
      button.prepend(document.createElement("i"));
      if (/, proved$/.test(entry.label)) button.querySelector("i").style.borderTopStyle = "dashed";
      buttons.push([button, entry]);
    }
    refresh();
    return refresh;
  }

  const all = [];
  for (const element of document.querySelectorAll("[data-figure]")) {
    const figure = figures[Number(element.dataset.figure)];
    const entries = labels(figure);
    const frames = element.querySelectorAll(".chart");
    const charts = figure.panels.map((panel, i) => {
      const chart = { frame: frames[i].querySelector(".plot"), series: panel.series, x: panel.x, title: panel.title, log: {}, plot: null };
      for (const button of frames[i].querySelectorAll("[data-log]")) {
        const which = button.dataset.log;
        chart.log[which] = button.getAttribute("aria-pressed") === "true";
        button.addEventListener("click", () => {
          chart.log[which] = !chart.log[which];
          button.setAttribute("aria-pressed", String(chart.log[which]));
          build(chart);
        });
      }
      return chart;
    });
    const refresh = keys(element.querySelector(".keys"), entries, figure.shown, () => charts.forEach(build));
    all.push({ charts, refresh });
  }
  const buildAll = () => all.forEach(one => { one.refresh(); one.charts.forEach(build); });
  buildAll();
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    all.forEach(one => one.charts.forEach(chart => chart.plot.setSize({ width: Math.max(200, chart.frame.clientWidth), height: 260 })));
  });
  scheme.addEventListener("change", buildAll);
  window.addEventListener("beforeprint", () => { root.classList.add("printing"); buildAll(); });
  window.addEventListener("afterprint", () => { root.classList.remove("printing"); buildAll(); });
})();
