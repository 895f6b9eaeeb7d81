// Line charts of the report and the live page, drawn by uPlot in the colours of page.css.
"use strict";

const DASHES = [[], [8, 4], [2, 3], [8, 4, 2, 4]];
const CHART_HEIGHT = 260;
const MAX_TOOLTIP_LINES = 12;
const MAX_TICK_DECIMALS = 5; // smaller numbers are written as 1e-6

function cssColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function seriesColour(number) {
  return cssColour(`--series-${number % 7}`);
}

function formatValue(value) {
  return value == null ? "–" : Number(value.toPrecision(4)).toString();
}

// Return the number of decimals of a distance between ticks: 4 for 0.0005.
function decimals(step) {
  for (let digits = 0; digits < 15; digits += 1) {
    const scaled = step * 10 ** digits;
    if (scaled > 0.999 && Math.abs(scaled - Math.round(scaled)) < 1e-6) {
      return digits;
    }
  }
  return 15;
}

// Return the labels of ticks, with enough digits that neighbours differ.
function tickLabels(values, step) {
  const digits = decimals(step);

  function label(value) {
    if (value == null) {
      return "";
    }
    if (value !== 0 && digits > MAX_TICK_DECIMALS) {
      const exponent = Math.floor(Math.log10(Math.abs(value)));
      return value.toExponential(Math.max(0, exponent + digits));
    }
    const shown = digits > MAX_TICK_DECIMALS ? 0 : digits;
    return value.toLocaleString("en", {
      minimumFractionDigits: shown,
      maximumFractionDigits: shown,
    });
  }

  return values.map(label);
}

function tickWidth(labels) {
  const longest = Math.max(0, ...(labels ?? []).map((label) => label.length));
  return Math.max(50, 16 + 7 * longest);
}

// Show the values at the cursor in a box that replaces the legend.
function tooltipPlugin() {
  let box = null;

  function rowsAt(plot, index) {
    const rows = [];
    plot.series.forEach((series, number) => {
      const value = plot.data[number][index];
      if (number > 0 && series.show && series.width > 0 && value != null) {
        rows.push({ label: series.label, value, colour: series.stroke(plot, number) });
      }
    });
    return rows.sort((one, other) => other.value - one.value);
  }

  function fill(plot, index) {
    const rows = rowsAt(plot, index);
    const head = document.createElement("strong");
    head.textContent = `round ${plot.data[0][index]}`;
    box.replaceChildren(head);
    const listed = rows.length === MAX_TOOLTIP_LINES + 1 ? rows.length : MAX_TOOLTIP_LINES;
    for (const row of rows.slice(0, listed)) {
      const line = document.createElement("div");
      const mark = document.createElement("span");
      mark.className = "tooltip-mark";
      mark.style.background = row.colour;
      line.append(mark, `${row.label}  ${formatValue(row.value)}`);
      box.append(line);
    }
    if (rows.length > listed) {
      box.append(`and ${rows.length - listed} more`);
    }
  }

  return {
    hooks: {
      init: (plot) => {
        box = document.createElement("div");
        box.className = "chart-tooltip";
        plot.over.append(box);
        plot.over.addEventListener("mouseleave", () => box.classList.remove("shown"));
        plot.over.addEventListener("mouseenter", () => box.classList.add("shown"));
      },
      setCursor: (plot) => {
        const { idx, left } = plot.cursor;
        if (idx == null || left < 0) {
          return;
        }
        fill(plot, idx);
        const onRight = left > plot.over.clientWidth / 2;
        box.style.left = onRight ? "" : `${left + 12}px`;
        box.style.right = onRight ? `${plot.over.clientWidth - left + 12}px` : "";
      },
    },
  };
}

// Draw one chart into an element.
// `chart` has x (the rounds), yLabel, and series: a list of {label, values, width?}.
// A missing value is null. Returns an object with update(chart) and show(isShown).
//
// Optional keys of a chart: xRange and yRange [low, high]; bands, a list of {high, low} with positions of
// series; legend: false, for a box at the cursor instead of a legend; sync, a name that charts
// with a common cursor share. Of a series: colour and dash (numbers), points: false, shown: false.
function drawChart(element, chart) {
  let plot = null;
  let shown = chart;
  let isShown = (line) => line.shown !== false;

  function axis(label) {
    return {
      label,
      stroke: cssColour("--muted"),
      grid: { stroke: cssColour("--grid"), width: 1 },
      ticks: { stroke: cssColour("--grid"), width: 1 },
      labelSize: 22,
    };
  }

  function lineOptions(line, number) {
    const colour = seriesColour(line.colour ?? number);
    return {
      label: line.label,
      show: isShown(line),
      stroke: colour,
      dash: DASHES[(line.dash ?? Math.floor(number / 7)) % DASHES.length],
      width: line.width ?? 2,
      spanGaps: true,
      points: {
        show: line.points !== false && shown.x.length < 60,
        fill: cssColour("--surface"),
        size: 6,
      },
      value: (_, value) => formatValue(value),
    };
  }

  function bandOptions({ high, low }) {
    const colour = seriesColour(shown.series[high].colour ?? high);
    return { series: [high + 1, low + 1], fill: `${colour}2e` };
  }

  function options() {
    const scales = { x: { time: false } };
    if (shown.xRange) {
      scales.x.range = () => shown.xRange;
    }
    if (shown.yRange) {
      scales.y = { range: () => shown.yRange };
    }
    const options = {
      width: Math.max(240, element.clientWidth),
      height: CHART_HEIGHT,
      scales,
      axes: [
        { ...axis("round"), incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500], size: 32 },
        {
          ...axis(shown.yLabel),
          values: (_, values, _axis, _space, step) => tickLabels(values, step),
          size: (_, labels) => tickWidth(labels),
        },
      ],
      series: [{ label: "round" }, ...shown.series.map(lineOptions)],
      bands: (shown.bands ?? []).map(bandOptions),
    };
    if (shown.legend === false) {
      options.legend = { show: false };
      options.plugins = [tooltipPlugin()];
    }
    if (shown.sync) {
      options.cursor = { sync: { key: shown.sync } };
    }
    return options;
  }

  function draw() {
    if (plot) {
      plot.destroy();
    }
    plot = new uPlot(options(), [shown.x, ...shown.series.map((line) => line.values)], element);
  }

  draw();
  new ResizeObserver(() => {
    const width = Math.max(240, element.clientWidth);
    if (plot && Math.abs(plot.width - width) > 1) {
      plot.setSize({ width, height: CHART_HEIGHT });
    }
  }).observe(element);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  return {
    update(next) {
      const labels = (of) => [of.yLabel, ...of.series.map((line) => line.label)].join("\n");
      const same = labels(next) === labels(shown);
      shown = next;
      if (same) {
        plot.setData([next.x, ...next.series.map((line) => line.values)]);
      } else {
        draw();
      }
    },
    // Show the lines for which a function of the line returns true, and hide the others.
    show(decide) {
      isShown = decide;
      shown.series.forEach((line, number) => {
        if (plot.series[number + 1].show !== decide(line)) {
          plot.setSeries(number + 1, { show: decide(line) });
        }
      });
    },
  };
}
