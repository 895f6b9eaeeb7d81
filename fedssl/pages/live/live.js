// The live page: receives what is new from the server, and reconnects by itself.
"use strict";

const RETRY_MS = 2000;
const LOST = "The connection is lost. Trying again …";
const NO_ACCESS =
  "`fedssl watch` was started again with a new token: open the URL that it printed.";

const table = new ClientTable();
const drawn = new Map(); // name of a chart -> {section, chart}
let head = null;
let receivedAt = 0; // by this browser's clock, which may differ from the server's
let source = null;

function byId(id) {
  return document.getElementById(id);
}

function serverNow() {
  return head ? head.now + (performance.now() - receivedAt) / 1000 : 0;
}

function isRunning() {
  return ["training", "measuring"].includes(head.state);
}

function showHead() {
  setText(byId("title"), head.title);
  byId("state").hidden = false;
  byId("state").dataset.state = head.state;
  setText(byId("state"), head.label);
  setText(byId("names"), namesText());
  setText(byId("detail"), head.detail);
  showProgress();
  showWarnings(head.warnings ?? []);
  const position = head.rounds ? `${head.finished}/${head.rounds} ` : "";
  document.title = `${position}${head.label} · ${head.title}`;
}

function namesText() {
  const parts = [head.names];
  if (head.on_flower) {
    parts.push("Flower server");
  }
  if (head.private) {
    parts.push("client-level differential privacy");
  }
  return parts.filter(Boolean).join(" · ");
}

function showProgress() {
  const rounds = head.rounds ?? 0;
  let text = rounds ? `${head.finished} of ${rounds} rounds finished` : "No rounds yet";
  if (head.in_round) {
    text = `Round ${head.round} of ${rounds}`;
  }
  setText(byId("round"), text);
  const asked = formatNumber(head.asked ?? 0, 0);
  const replied = `${formatNumber(head.replied ?? 0, 0)} of ${asked} clients are done`;
  setText(byId("replied"), head.asked ? replied : "");
  const within = head.asked ? Math.min(1, head.replied / head.asked) : 0;
  const share = rounds ? Math.min(1, (head.finished + within) / rounds) : 0;
  byId("progress-bar").style.width = `${100 * share}%`;
  byId("progress").setAttribute("aria-valuenow", String(Math.round(100 * share)));
}

function showTiles() {
  const running = isRunning();
  const age = running && head.state === "training" ? serverNow() - head.now : 0;
  const tiles = [];
  if (head.elapsed) {
    tiles.push(["Training time", ...formatDuration(head.elapsed + age)]);
  }
  if (running && head.remaining != null) {
    const [time, unit] = formatDuration(head.remaining);
    const of = head.remaining_of ? ` of ${head.remaining_of}` : "";
    tiles.push(["Time left", `≈ ${time}`, unit + of]);
  }
  if (head.images_per_s) {
    tiles.push(["Speed", formatNumber(head.images_per_s, 0), " images/s"]);
  }
  if (head.loss != null) {
    tiles.push(["Loss", formatNumber(head.loss, 4)]);
  }
  if (head.knn != null) {
    tiles.push(["kNN accuracy", `${head.knn.toFixed(1)}`, " %"]);
  }
  if (head.epsilon != null) {
    const budget = head.budget == null ? "" : ` of ${formatNumber(head.budget, 3)}`;
    tiles.push(["ε spent", formatNumber(head.epsilon, 3), `${budget}, δ = ${head.delta}`]);
  }
  const list = byId("tiles");
  while (list.children.length > tiles.length) {
    list.lastChild.remove();
  }
  list.hidden = tiles.length === 0;
  tiles.forEach(([name, value, unit], position) => {
    const tile = list.children[position] ?? list.appendChild(makeTile());
    setText(tile.querySelector("dt"), name);
    setText(tile.querySelector(".value"), value);
    setText(tile.querySelector(".unit"), unit ?? "");
  });
}

function makeTile() {
  const tile = document.createElement("div");
  const name = document.createElement("dt");
  const description = document.createElement("dd");
  for (const kind of ["value", "unit"]) {
    const part = document.createElement("span");
    part.className = kind;
    description.append(part);
  }
  tile.append(name, description);
  return tile;
}

function showWarnings(warnings) {
  byId("warnings").hidden = warnings.length === 0;
  const texts = warnings.map(({ round, text }) => (round ? `Round ${round}: ${text}` : text));
  const list = byId("warning-list");
  if ([...list.children].map((item) => item.textContent).join("\n") === texts.join("\n")) {
    return;
  }
  list.replaceChildren();
  for (const text of texts) {
    const item = document.createElement("li");
    item.textContent = text;
    list.append(item);
  }
}

function showCharts(charts) {
  byId("no-charts").hidden = charts.length > 0;
  const names = charts.map((chart) => chart.name);
  if (names.join() !== [...drawn.keys()].join()) {
    byId("charts").replaceChildren();
    drawn.clear();
  }
  for (const chart of charts) {
    if (drawn.has(chart.name)) {
      drawn.get(chart.name).update(chart);
      continue;
    }
    const section = document.createElement("section");
    const title = document.createElement("h2");
    title.textContent = chart.title;
    const plot = document.createElement("div");
    plot.className = "plot";
    section.append(title, plot);
    byId("charts").append(section);
    drawn.set(chart.name, drawChart(plot, chart));
  }
}

function showConnection(text) {
  byId("connection").hidden = text === "";
  setText(byId("connection"), text);
}

function showTime() {
  if (!head) {
    return;
  }
  showTiles();
  table.tick(serverNow());
  const age = (performance.now() - receivedAt) / 1000;
  const live = source && source.readyState === EventSource.OPEN;
  setText(byId("updated"), live ? "Live" : `Last update ${formatAge(age)}`);
}

function connect() {
  source = new EventSource("events");
  source.addEventListener("open", () => showConnection(""));
  source.addEventListener("head", (event) => {
    head = JSON.parse(event.data);
    receivedAt = performance.now();
    showHead();
    showTime();
  });
  source.addEventListener("charts", (event) => showCharts(JSON.parse(event.data)));
  source.addEventListener("clients", (event) => {
    table.update(JSON.parse(event.data));
    table.tick(serverNow());
  });
  source.addEventListener("error", () => {
    disconnect();
    showConnection(LOST);
    setTimeout(reconnect, RETRY_MS);
  });
}

function disconnect() {
  if (source) {
    source.close();
    source = null;
  }
}

async function reconnect() {
  if (source || document.hidden) {
    return;
  }
  let status = 0;
  try {
    status = (await fetch("alive", { cache: "no-store" })).status;
  } catch {
    status = 0;
  }
  if (source || document.hidden) {
    return;
  }
  if (status === 204) {
    connect();
    return;
  }
  showConnection(status === 403 ? NO_ACCESS : LOST);
  setTimeout(reconnect, RETRY_MS);
}

// A browser opens few connections to one server: hidden tabs give theirs back.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    disconnect();
  } else {
    reconnect();
  }
});

// The token is in a cookie now: it need not stay in the address bar and the history.
history.replaceState(null, "", location.pathname);
setInterval(showTime, 1000);
connect();
