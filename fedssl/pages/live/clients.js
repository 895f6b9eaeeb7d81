// The table of clients: sorted, filtered, and one page of rows at a time.
"use strict";

const ROWS_PER_PAGE = 50;
const STATES = {
  training: "training",
  waiting: "waiting",
  dropped: "dropped",
  offline: "offline",
  replied: "replied",
  idle: "not asked",
};
const STATE_ORDER = ["dropped", "offline", "training", "waiting", "replied", "idle"];
const COLUMNS = [
  { key: "name", label: "Client", type: "text" },
  { key: "state", label: "State", type: "state" },
  { key: "rate", label: "Images/s", type: "number", digits: 0 },
  { key: "loss", label: "Loss", type: "number", digits: 4 },
  { key: "divergence", label: "Divergence", type: "number", digits: 3 },
  { key: "drops", label: "Dropped", type: "number", digits: 0 },
  { key: "since", label: "Last seen", type: "time" },
];
const FILTERS = [
  { key: "all", label: "All", accepts: () => true },
  { key: "problem", label: "Problems", accepts: (row) => row.problem },
  { key: "training", label: "Training", accepts: (row) => row.state === "training" },
];

function formatNumber(value, digits) {
  if (value == null) {
    return "–";
  }
  if (digits === 0) {
    return Math.round(value).toLocaleString("en");
  }
  if (Math.abs(value) >= 10 ** digits) {
    return Math.round(value).toLocaleString("en");
  }
  return value.toPrecision(digits);
}

// Return a time and its unit: "50" and " s", "2:03" and " min", "1:02" and " h".
function formatDuration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) {
    return [String(whole), " s"];
  }
  const pad = (number) => String(number).padStart(2, "0");
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) {
    return [`${minutes}:${pad(whole % 60)}`, " min"];
  }
  return [`${Math.floor(minutes / 60)}:${pad(minutes % 60)}`, " h"];
}

function formatAge(seconds) {
  if (seconds < 3) {
    return "now";
  }
  if (seconds < 90) {
    return `${Math.round(seconds)} s ago`;
  }
  if (seconds < 5400) {
    return `${Math.round(seconds / 60)} min ago`;
  }
  if (seconds < 129600) {
    return `${Math.round(seconds / 3600)} h ago`;
  }
  return `${Math.round(seconds / 86400)} days ago`;
}

class ClientTable {
  constructor() {
    this.rows = new Map();
    this.sortKey = "name";
    this.descending = false;
    this.filter = FILTERS[0];
    this.search = "";
    this.page = 0;
    this.order = [];
    this.elements = new Map();
    this.hovered = false;
    this.now = 0;
    this.makeHead();
    this.makeControls();
  }

  makeHead() {
    const head = document.getElementById("client-head");
    const sort = document.getElementById("sort");
    for (const column of COLUMNS) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.dataset.key = column.key;
      cell.className = column.type === "number" ? "number" : "";
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = column.label;
      button.addEventListener("click", () => this.sortBy(column.key, true));
      cell.append(button);
      head.append(cell);
      const option = document.createElement("option");
      option.value = column.key;
      option.textContent = column.label.toLowerCase();
      sort.append(option);
    }
    sort.addEventListener("change", () => this.sortBy(sort.value, false));
    this.markSort();
  }

  makeControls() {
    const filters = document.getElementById("filters");
    for (const filter of FILTERS) {
      const button = document.createElement("button");
      button.type = "button";
      button.addEventListener("click", () => {
        this.filter = filter;
        this.restart();
      });
      filter.button = button;
      filters.append(button);
    }
    document.getElementById("search").addEventListener("input", (event) => {
      this.search = event.target.value.trim().toLowerCase();
      this.restart();
    });
    document.getElementById("previous").addEventListener("click", () => this.turn(-1));
    document.getElementById("next").addEventListener("click", () => this.turn(1));
    const body = document.getElementById("client-rows");
    body.addEventListener("pointerenter", () => (this.hovered = true));
    body.addEventListener("pointerleave", () => (this.hovered = false));
  }

  sortBy(key, toggle) {
    if (toggle && key === this.sortKey) {
      this.descending = !this.descending;
    } else {
      // The first click on a number shows the largest first.
      this.descending = COLUMNS.find((column) => column.key === key).type === "number";
    }
    this.sortKey = key;
    document.getElementById("sort").value = key;
    this.markSort();
    this.restart();
  }

  markSort() {
    for (const cell of document.getElementById("client-head").children) {
      const sorted = cell.dataset.key === this.sortKey;
      const direction = this.descending ? "descending" : "ascending";
      cell.setAttribute("aria-sort", sorted ? direction : "none");
    }
  }

  turn(pages) {
    this.page += pages;
    this.show();
  }

  restart() {
    this.page = 0;
    this.arrange();
    this.show();
  }

  update(message) {
    if (message.reset) {
      this.rows.clear();
    }
    for (const row of message.rows) {
      this.rows.set(row.name, row);
    }
    // Rows stay in their place under the pointer.
    if (!this.hovered || message.reset || this.order.length === 0) {
      this.arrange();
    }
  }

  tick(now) {
    this.now = now;
    this.show();
  }

  arrange() {
    const accepted = [];
    for (const row of this.rows.values()) {
      const matches = row.name.toLowerCase().includes(this.search);
      if (matches && this.filter.accepts(row)) {
        accepted.push(row);
      }
    }
    accepted.sort((first, second) => this.compare(first, second));
    this.order = accepted.map((row) => row.name);
  }

  compare(first, second) {
    const byName = first.name.localeCompare(second.name, "en", { numeric: true });
    if (this.sortKey === "name") {
      return this.descending ? -byName : byName;
    }
    const a = this.sortValue(first);
    const b = this.sortValue(second);
    if (a == null || b == null) {
      return (a == null) - (b == null) || byName; // missing values are last
    }
    return (this.descending ? b - a : a - b) || byName;
  }

  sortValue(row) {
    if (this.sortKey === "state") {
      return STATE_ORDER.indexOf(row.state);
    }
    if (this.sortKey === "since") {
      return -(row.since || row.round || -Infinity);
    }
    return row[this.sortKey];
  }

  show() {
    const pages = Math.max(1, Math.ceil(this.order.length / ROWS_PER_PAGE));
    this.page = Math.min(Math.max(0, this.page), pages - 1);
    const start = this.page * ROWS_PER_PAGE;
    const names = this.order.slice(start, start + ROWS_PER_PAGE);
    this.showRows(names);
    this.hideEmptyColumns();
    document.getElementById("clients").hidden = this.rows.size === 0;
    document.getElementById("no-clients").hidden = names.length > 0;
    document.getElementById("pager").hidden = pages === 1;
    const end = start + names.length;
    const total = this.order.length.toLocaleString("en");
    document.getElementById("page-text").textContent = `${start + 1}–${end} of ${total}`;
    document.getElementById("previous").disabled = this.page === 0;
    document.getElementById("next").disabled = this.page === pages - 1;
    document.getElementById("client-count").textContent = this.rows.size.toLocaleString("en");
    for (const filter of FILTERS) {
      const count = [...this.rows.values()].filter(filter.accepts).length;
      const shown = filter.key === "all" ? filter.label : `${filter.label} ${count}`;
      setText(filter.button, shown);
      filter.button.setAttribute("aria-pressed", String(filter === this.filter));
    }
  }

  showRows(names) {
    const body = document.getElementById("client-rows");
    const shown = new Set(names);
    for (const [name, element] of this.elements) {
      if (!shown.has(name)) {
        element.remove();
        this.elements.delete(name);
      }
    }
    names.forEach((name, position) => {
      let element = this.elements.get(name);
      if (!element) {
        element = this.makeRow();
        this.elements.set(name, element);
      }
      if (body.children[position] !== element) {
        body.insertBefore(element, body.children[position] ?? null);
      }
      this.fillRow(element, this.rows.get(name));
    });
  }

  // Private runs withhold what clients report.
  hideEmptyColumns() {
    const rows = [...this.rows.values()];
    COLUMNS.forEach((column, position) => {
      if (!["rate", "loss", "divergence"].includes(column.key)) {
        return;
      }
      const empty = rows.every((row) => row[column.key] == null);
      document.getElementById("client-head").children[position].hidden = empty;
      for (const element of this.elements.values()) {
        element.children[position].hidden = empty;
      }
    });
  }

  makeRow() {
    const row = document.createElement("tr");
    for (const column of COLUMNS) {
      const cell = document.createElement("td");
      if (column.key === "name") {
        cell.className = "name";
      } else if (column.key === "state") {
        cell.className = "state-cell";
        for (const name of ["badge", "steps", "reason"]) {
          const part = document.createElement(name === "reason" ? "div" : "span");
          part.className = name;
          cell.append(part);
        }
      } else {
        cell.className = column.type === "number" ? "number" : "time";
        cell.dataset.label = column.label;
      }
      row.append(cell);
    }
    return row;
  }

  fillRow(element, row) {
    COLUMNS.forEach((column, position) => {
      const cell = element.children[position];
      if (column.key === "state") {
        this.fillState(cell, row);
      } else if (column.key === "since") {
        setText(cell, this.lastSeen(row));
      } else if (column.key === "drops") {
        setText(cell, row.asked ? `${row.drops} of ${row.asked}` : "–");
      } else if (column.type === "number") {
        setText(cell, formatNumber(row[column.key], column.digits));
      } else {
        setText(cell, row.name);
      }
    });
  }

  fillState(cell, row) {
    const [badge, steps, reason] = cell.children;
    badge.dataset.state = row.state;
    setText(badge, STATES[row.state] ?? row.state);
    const counted = row.state === "training" && row.planned > 0;
    setText(steps, counted ? `step ${row.steps} of ${row.planned}` : "");
    setText(reason, row.reason);
  }

  lastSeen(row) {
    if (row.since) {
      return formatAge(row.state === "training" && row.steps ? 0 : this.now - row.since);
    }
    return row.round ? `round ${row.round}` : "–";
  }
}

// Write a text only if it differs: a write lets the browser lay out the page again.
function setText(element, text) {
  if (element.textContent !== text) {
    element.textContent = text;
  }
}
