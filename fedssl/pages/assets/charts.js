// Line charts of the report and the live page, drawn by uPlot in the colours of page.css.
"use strict";

const DASHES = [[], [8, 4], [2, 3], [8, 4, 2, 4]];
const CHART_HEIGHT = 260;

function cssColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function seriesColour(number) {
  return cssColour(`--series-${number % 7}`);
}

// Draw one chart into an element.
// `chart` has x (the rounds), yLabel, and series: a list of {label, values, width?}.
// A missing value is null. Returns an object with update(chart).
function drawChart(element, chart) {
  let plot = null;
  let shown = chart;

  function axis(label) {
    return {
      label,
      stroke: cssColour("--muted"),
      grid: { stroke: cssColour("--grid"), width: 1 },
      ticks: { stroke: cssColour("--grid"), width: 1 },
      labelSize: 24,
    };
  }

  function options() {
    const series = shown.series.map((line, number) => ({
      label: line.label,
      stroke: seriesColour(number),
      dash: DASHES[Math.floor(number / 7) % DASHES.length],
      width: line.width ?? 2,
      spanGaps: true,
      points: { show: shown.x.length < 60 },
      value: (_, value) => (value == null ? "–" : Number(value.toPrecision(4)).toString()),
    }));
    return {
      width: Math.max(240, element.clientWidth),
      height: CHART_HEIGHT,
      scales: { x: { time: false } },
      axes: [{ ...axis("round"), incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500] }, axis(shown.yLabel)],
      series: [{ label: "round" }, ...series],
    };
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
      const labels = (of) => of.series.map((line) => line.label).join("\n");
      const same = labels(next) === labels(shown);
      shown = next;
      if (same) {
        plot.setData([next.x, ...next.series.map((line) => line.values)]);
      } else {
        draw();
      }
    },
  };
}
