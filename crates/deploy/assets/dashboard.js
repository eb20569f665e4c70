/* The live page: events in, numbers, four charts and a table out. Text is set as text, never as markup. */
(function () {
  "use strict";
  const $ = id => document.getElementById(id);
  const HEIGHT = 230;

  /* Numbers as the report writes them. */
  function trim(text) {
    return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
  }
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
    return (factor === "1" ? "" : factor + "×") + "10" + power;
  }
  const count = value => String(value).replace(/\B(?=(\d{3})+$)/g, "\u202f");
  const percent = value => (100 * value).toFixed(2) + " %";
  /* Epsilon is never written below its value. */
  function roundedUp(value) {
    if (!(value > 0)) return plain(value, 4);
    const scale = Math.pow(10, 3 - Math.floor(Math.log10(value)));
    return plain(Math.ceil(value * scale * (1 - 1e-12)) / scale, 4);
  }
  function bytes(value) {
    let index = 0;
    while (value >= 999.5 && index < 6) {
      value /= 1000;
      index += 1;
    }
    return plain(value, 3) + " " + ["B", "kB", "MB", "GB", "TB", "PB", "EB"][index];
  }
  function seconds(value) {
    if (value < 1) return plain(value * 1000, 3) + " ms";
    if (value < 120) return plain(value, 3) + " s";
    if (value < 7200) return plain(value / 60, 3) + " min";
    if (value < 172800) return plain(value / 3600, 3) + " h";
    return plain(value / 86400, 3) + " days";
  }
  const orDash = (value, write) => (value === null || value === undefined ? "–" : write(value));

  /* Only what changed is written, so that selections and screen readers are left in peace. */
  function say(id, text) {
    const element = $(id);
    if (element.textContent !== text) element.textContent = text;
  }

  /* ---- the state ---- */
  let status = null;

  function show() {
    const { about, summary, last } = status;
    const words = { waiting: "waiting for clients", running: "training", finished: "finished", stopping: "stopping" };
    say("title", about.algorithm + (about.model ? ", " + about.model : ""));
    document.title = (status.phase === "running" ? status.round + "/" + about.rounds : words[status.phase]) + " · SoteriaFL";
    say("subtitle", words[status.phase] + " · run " + about.run.slice(0, 16) + " · " + count(about.clients) + " clients · " + count(about.dimension) + " parameters");
    $("trouble").hidden = status.trouble === null;
    say("trouble", status.trouble === null ? "" : "The coordinator cannot go on: " + status.trouble);
    say("round", count(status.round) + " of " + count(about.rounds));
    $("bar").setAttribute("aria-valuenow", String(status.round));
    $("bar").setAttribute("aria-valuemax", String(about.rounds));
    $("fill").style.width = (about.rounds ? Math.min(100, 100 * status.round / about.rounds) : 0) + "%";
    say("round-note", roundNote());
    say("accuracy-title", predictsNumbers() ? "Test loss" : "Test accuracy");
    say("accuracy", predictsNumbers() ? plain(newest("test_loss"), 4) : orDash(newest("test_accuracy"), percent));
    say("accuracy-note", newest("test_accuracy") === null ? unmeasured() : "loss " + orDash(newest("test_loss"), value => plain(value, 4)));
    say("epsilon", about.epsilon === null ? "no ε" : "ε = " + roundedUp(about.epsilon));
    say("epsilon-note", about.epsilon === null ? about.claim
      : "δ = " + plain(about.delta, 2) + " at the end, " + about.claim + (last && last.epsilon !== null ? "; spent " + roundedUp(last.epsilon) : ""));
    $("waiting").hidden = status.waiting === null;
    say("waiting", waitingNote());
    say("clients", count(summary.connected) + " of " + count(about.clients));
    say("clients-note", clientsNote());
    say("up", bytes(summary.bytes_up));
    say("up-note", perMessage());
    say("down", bytes(summary.bytes_down));
    say("down-note", "averages, snapshots and answers");
    const pace = recentPace();
    say("pace", pace === null ? "–" : plain(pace, 3));
    /* Nobody knows when a round will close that waits for somebody. */
    const stuck = status.waiting !== null && status.waiting.closes === null;
    say("pace-note", pace === null || status.phase !== "running" ? "" : stuck ? "waiting" : "about " + seconds(pace * (about.rounds - status.round)) + " to go");
    say("counts", [[summary.current, "up to date"], [summary.away, "not connected"], [summary.behind, "behind"], [summary.missing, "missing"], [summary.finished, "done"]]
      .filter(([n]) => n > 0).map(([n, name]) => count(n) + " " + name).join(" · "));
    rows();
    say("more", status.more_clients ? "and " + count(status.more_clients) + " more; those furthest behind are shown" : "");
    say("version", "soteria " + about.version + ".");
  }
  /* A model of a number has a loss on the test set, and never an accuracy. */
  const predictsNumbers = () => newest("test_accuracy") === null && newest("test_loss") !== null;
  const unmeasured = () => (status === null ? "loading" : !status.about.tested ? "the server has no test set"
    : predictsNumbers() ? "the model predicts a number, which is not right or wrong" : "nothing is measured yet");
  const unclosed = () => (status === null ? "loading" : "no round has closed yet");
  /* Who is waited for and since when, in words. */
  const clock = time => new Date(1000 * time).toLocaleTimeString([], { hour12: false });
  const client = number => "client " + String(number);
  const lasting = since => "since " + clock(since) + " (" + seconds(Math.max(1, Math.round(status.now - since))) + ")";
  function clientsNote() {
    const { summary, waiting } = status;
    if (waiting !== null) return waiting.missing === 1 ? "waiting for " + client(waiting.clients[0].client) : "waiting for " + count(waiting.missing);
    if (summary.missing) return count(summary.missing) + " missing";
    if (summary.away) return count(summary.away) + " not connected";
    return summary.behind ? count(summary.behind) + " behind" : "all here and up to date";
  }
  function waitingNote() {
    const waiting = status.waiting;
    if (waiting === null) return "";
    const names = waiting.clients.slice(0, 8).map(awaited => client(awaited.client) +
      (awaited.connected ? "" : status.phase === "waiting" ? " (not here)" : " (no connection " + lasting(awaited.since) + ")"));
    const more = waiting.missing - names.length;
    const what = { waiting: "The run has been waiting for clients to join", finished: "All rounds are done, and the server has been waiting for clients to know it" }[status.phase] || "The round has been waiting";
    const closes = waiting.closes === null ? "" : ". It closes without them at " + clock(waiting.closes) + " if enough others answer";
    return what + " " + lasting(waiting.since) + ": " + names.join(", ") + (more > 0 ? " and " + count(more) + " more" : "") + closes + ".";
  }
  function roundNote() {
    if (status.phase === "finished") return "all rounds are done";
    if (status.phase === "waiting") return "the first round begins when all clients have joined";
    const open = status.opened === null ? "" : ", open for " + seconds(Math.max(0, status.now - status.opened));
    return count(status.arrived) + " of " + count(status.about.clients) + " messages of the next are here" + open;
  }
  function perMessage() {
    const last = points[points.length - 1], before = points[points.length - 2];
    if (!last || !before || last.round !== before.round + 1 || !last.taken) return "";
    return bytes((last.uplink_bytes - before.uplink_bytes) / last.taken) + " a message";
  }
  function newest(key) {
    for (let i = points.length - 1; i >= 0; i--) if (points[i][key] !== null) return points[i][key];
    return null;
  }
  function recentPace() {
    const recent = points.filter(point => point.round > 0).slice(-20);
    return recent.length ? recent.reduce((sum, point) => sum + point.seconds, 0) / recent.length : null;
  }

  /* ---- the table: rows are reused, so that an update of fifty rows costs no layout of new ones ---- */
  function rows() {
    const body = $("rows");
    while (body.rows.length > status.clients.length) body.deleteRow(-1);
    status.clients.forEach((client, index) => {
      let row = body.rows[index];
      if (!row) {
        row = body.insertRow();
        for (let i = 0; i < 10; i++) row.insertCell().className = i > 1 ? "n" : "";
        row.cells[1].appendChild(document.createElement("span"));
      }
      const state = client.finished ? "finished" : !client.joined ? "missing" : !client.connected ? "away"
        : client.lag ? "behind" : status.waiting !== null && status.phase === "running" && !client.answered ? "awaited" : "current";
      const badge = row.cells[1].firstChild;
      badge.className = "state " + (state === "awaited" ? "behind" : state);
      const cells = [
        String(client.client), { current: "up to date", behind: "behind", awaited: "waited for", away: "not connected", missing: "missing", finished: "done" }[state],
        client.joined ? count(Math.min(client.round, status.round)) : "–", client.joined ? count(client.lag) : "–", count(client.taken), count(client.missed),
        bytes(client.bytes_up), bytes(client.bytes_down), orDash(client.epsilon, roundedUp),
        client.last_seen === null ? "never" : seconds(Math.max(0, Math.round(status.now - client.last_seen))) + " ago",
      ];
      cells.forEach((text, i) => {
        const cell = i === 1 ? badge : row.cells[i];
        if (i === 9 && text === "0 ms ago") text = "now";
        if (cell.textContent !== text) cell.textContent = text;
      });
    });
  }

  /* ---- the curves ---- */
  let points = [];
  const CHARTS = {
    accuracy: { write: percent, tick: value => plain(100 * value, 4) + " %", series: [{ key: "test_accuracy", label: "test accuracy", color: "--c4" }], none: unmeasured },
    loss: { write: value => plain(value, 4), series: [{ key: "test_loss", label: "test loss", color: "--c3" }], none: unmeasured },
    bytes: { write: bytes, series: [{ key: "uplink_bytes", label: "from clients", color: "--c1" }, { key: "downlink_bytes", label: "to clients", color: "--c2" }], zero: true, none: unclosed },
    seconds: { write: seconds, series: [{ key: "seconds", label: "seconds", color: "--c5" }], zero: true, skipStart: true, none: unclosed },
  };
  const charts = Array.from(document.querySelectorAll("[data-chart]"), figure => ({
    ...CHARTS[figure.dataset.chart], frame: figure.querySelector(".plot"), plot: null, absent: null,
  }));

  function table(chart) {
    const used = points.filter(point => (!chart.skipStart || point.round > 0) && chart.series.some(series => point[series.key] !== null));
    return [used.map(point => point.round)].concat(chart.series.map(series => used.map(point => point[series.key])));
  }
  function build(chart) {
    if (chart.plot) chart.plot.destroy();
    chart.plot = null;
    chart.frame.textContent = "";
    const data = table(chart);
    if (data[0].length === 0) {
      const absent = document.createElement("p");
      absent.className = "absent";
      absent.textContent = chart.none();
      chart.frame.appendChild(absent);
      return;
    }
    const css = getComputedStyle(document.documentElement);
    const color = name => css.getPropertyValue(name).trim();
    const axis = (vertical, write) => ({
      stroke: color("--muted"), font: "12px " + getComputedStyle(document.body).fontFamily,
      size: vertical ? 68 : 34, gap: vertical ? 6 : 4, space: vertical ? 40 : 70,
      grid: { stroke: color("--grid"), width: 1, show: vertical }, ticks: { stroke: color("--grid"), width: 1, size: vertical ? 0 : 5 },
      incrs: vertical ? undefined : [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 1e7, 1e8, 1e9],
      values: (_, ticks) => ticks.map(write),
    });
    const span = (_, low, high) => {
      if (low === null || high === null) return [0, 1];
      if (chart.zero) return [0, high > 0 ? high * 1.07 : 1];
      const pad = high > low ? (high - low) * 0.07 : Math.abs(low) * 0.1 || 1;
      return [low - pad, high + pad];
    };
    chart.plot = new uPlot({
      width: Math.max(200, chart.frame.clientWidth), height: HEIGHT, padding: [10, 16, 0, 0],
      scales: { x: { time: false, range: (_, low, high) => (low === null ? [0, 1] : high > low ? [low, high] : [low - 1, low + 1]) }, y: { range: span } },
      axes: [axis(false, count), axis(true, chart.tick || chart.write)],
      series: [{ label: "round", value: (_, value) => orDash(value, count) }].concat(chart.series.map(series => ({
        label: series.label, stroke: color(series.color), width: 2, spanGaps: true, value: (_, value) => orDash(value, chart.write),
        points: { show: data[0].length < 40, size: 5, fill: color(series.color) },
      }))),
      cursor: { y: false, points: { size: 7 } }, legend: { live: true },
      hooks: {
        /* Without a pointer the legend speaks of the newest round. */
        setCursor: [u => { if (u.cursor.left < 0) u.setLegend({ idx: u.data[0].length - 1 }, false); }],
        ready: [u => u.setLegend({ idx: u.data[0].length - 1 }, false)],
      },
    }, data, chart.frame);
    chart.count = data[0].length;
  }
  function draw() {
    for (const chart of charts) {
      const data = table(chart);
      /* Dots are for few points; when they go, the figure is built again once. */
      if (!chart.plot || data[0].length === 0 || (chart.count < 40) !== (data[0].length < 40)) build(chart);
      else {
        chart.plot.setData(data);
        if (!(chart.plot.cursor.left >= 0)) chart.plot.setLegend({ idx: data[0].length - 1 }, false);
      }
    }
  }
  const buildAll = () => charts.forEach(build);

  /* ---- events ---- */
  function link(state, text) {
    $("light").className = "light " + state;
    say("link", text);
  }
  let lost = null;
  function alive() {
    lost = null;
    link("live", "live");
  }
  const events = new EventSource("events");
  events.addEventListener("history", event => {
    points = JSON.parse(event.data);
    draw();
  });
  events.addEventListener("points", event => {
    /* New rounds, and rounds of which something was measured later. */
    const byRound = new Map(points.map(point => [point.round, point]));
    for (const point of JSON.parse(event.data)) byRound.set(point.round, point);
    points = Array.from(byRound.values()).sort((a, b) => a.round - b.round);
    draw();
  });
  events.addEventListener("status", event => {
    const first = status === null;
    status = JSON.parse(event.data);
    alive();
    show();
    /* What is absent can be named only now. */
    if (first) draw();
  });
  events.onerror = () => {
    if (lost === null) lost = Date.now();
    const done = status !== null && status.phase === "finished";
    link(done ? "" : "lost", done ? "the run is finished and the server has gone" : "no connection to the server; what you see is old");
  };

  buildAll();
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    for (const chart of charts) if (chart.plot) chart.plot.setSize({ width: Math.max(200, chart.frame.clientWidth), height: HEIGHT });
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", buildAll);
})();
