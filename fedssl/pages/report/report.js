// Draw the charts and maps of a report, and make its switches and copy buttons work.
"use strict";

const reportData = JSON.parse(document.getElementById("report-data").textContent);
const drawnCharts = [];

function drawCharts() {
  for (const element of document.querySelectorAll("[data-chart]")) {
    const chart = reportData.charts[element.dataset.chart];
    drawnCharts.push(drawChart(element, chart));
    element.dataset.drawn = "true";
  }
}

// Connect the buttons that show and hide the lines of one client in all charts.
function connectSwitches() {
  const buttons = [...document.querySelectorAll("[data-client]")];
  const pressed = (button) => button.getAttribute("aria-pressed") === "true";

  function apply() {
    const hidden = new Set();
    for (const button of buttons) {
      if (!pressed(button)) {
        hidden.add(Number(button.dataset.client));
      }
    }
    for (const chart of drawnCharts) {
      chart.show((line) => !hidden.has(line.client));
    }
  }

  for (const button of buttons) {
    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", String(!pressed(button)));
      apply();
    });
  }
  for (const button of document.querySelectorAll("[data-clients]")) {
    button.addEventListener("click", () => {
      const shown = String(button.dataset.clients === "all");
      buttons.forEach((each) => each.setAttribute("aria-pressed", shown));
      apply();
    });
  }
}

// Copy with the clipboard API or, where a browser denies it to files, with a selection.
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    return copied;
  }
}

function connectCopyButtons() {
  for (const button of document.querySelectorAll("[data-copy]")) {
    const label = button.textContent;
    button.addEventListener("click", async () => {
      const text = button.parentElement.querySelector("code").textContent;
      button.textContent = (await copyText(text)) ? "Copied" : "Select and copy it";
      setTimeout(() => {
        button.textContent = label;
      }, 2000);
    });
  }
}

// A link to a section inside a closed part of the page, or to one, opens it.
function openTarget() {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  const closed = target && target.querySelector("details");
  if (closed && target.querySelectorAll("details").length === 1) {
    closed.open = true;
  }
}

drawCharts();
connectSwitches();
connectCopyButtons();
if (reportData.map) {
  new FeatureMaps(reportData.map);
}
window.addEventListener("hashchange", openTarget);
openTarget();
