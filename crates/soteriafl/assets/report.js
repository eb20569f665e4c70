/* The charts of the report: uPlot figures over the columns in #run-data. */
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
    test_loss: { write: short, series: [{ key: "test_loss", label: "test loss", color: "--c3", width: 2.25 }] },
    loss: { write: short, series: [{ key: "loss", label: "loss", color: "--c3", width: 2.25 }] },
    accuracy: { write: percent, tick: value => plain(100 * value, 5) + " %", series: [{ key: "test_accuracy", label: "test accuracy", color: "--c4", width: 2.25 }] },
    consensus_error: { write: short, series: [{ key: "consensus_error", label: "consensus error", color: "--c2", width: 2.25 }] },
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
      stroke: color("--muted"), font: "12px " + getComputedStyle(document.body).fontFamily, size: vertical ? roomFor(size) : size, gap: vertical ? 6 : 4,
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
