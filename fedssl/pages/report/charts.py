"""Describe the charts of a report as plain values, which charts.js draws."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedssl.pages.report.markup import Markup, join, tag
from fedssl.pages.report.training import CLIENT_METRICS, HINTS, NOTE, Training, Values
from fedssl.plots.run_picture import NAMES, Table, counted_models, ordered_rows
from fedssl.plots.style import COLOURS, accuracy_limits, model_title

Chart = dict[str, Any]
Series = dict[str, Any]

MAX_CLIENT_LINES = 24  # six colours, four dashes; of more clients, a chart shows quantiles
MAX_POINTS = 300  # rounds in a chart
MIN_SPAN = 0.1  # of the largest value: a smaller range would exaggerate differences
DIGITS = 5  # of a value
OVERALL = 6  # the colour of the mean or median, which no client has
SYMBOLS = {"lam": "λ", "mu": "μ", "tau": "τ"}  # of papers
# Metrics that mean something at 0, such as a collapse.
FROM_ZERO = {"divergence", "effective_rank", "embedding_std", "alignment"}
QUANTILES = (5, 25, 50, 75, 95)


def shown_rounds(count: int) -> list[int]:
    """Return the positions of the rounds in a chart: all, or evenly spread with both ends."""
    if count <= MAX_POINTS:
        return list(range(count))
    positions = np.linspace(0, count - 1, MAX_POINTS).round().astype(int)
    return list(dict.fromkeys(positions.tolist()))


def values_range(values: Iterable[float], zero: bool = False) -> tuple[float, float]:
    """Return the ends of an axis: from 0 if near or asked for, never of a very small range."""
    finite = list(filter(math.isfinite, values))
    low = min(finite)
    high = max(finite)
    if low >= 0 and (zero or low < high / 2 or high == 0):
        return 0.0, 1.05 * high or 1.0
    span = max(high - low, MIN_SPAN * max(abs(low), abs(high)))
    middle = (low + high) / 2
    return middle - 0.55 * span, middle + 0.55 * span


def _rounded(values: Sequence[float | None], positions: Sequence[int], unit: float = 1.0) -> Values:
    chosen: Values = []
    for position in positions:
        value = values[position]
        if value is not None:
            value = float(f"{value / unit:.{DIGITS}g}")
        chosen.append(value)
    return chosen


def make_chart(
    title: str,
    x: Sequence[float],
    series: list[Series],
    *,
    limits: tuple[float, float] | None = None,
    zero: bool = False,
    y_label: str = "",
    bands: Sequence[Mapping[str, int]] = (),
) -> Chart:
    """Return a chart; its axis begins at 0 with `zero`, and has a note if it begins above 0."""
    if limits is None:
        values: list[float] = []
        for line in series:
            values += filter(lambda value: value is not None, line["values"])
        limits = values_range(values, zero)
    if limits[0] > 0:
        y_label = f"{y_label}; axis from {limits[0]:.3g}".removeprefix("; ")
    return {
        "title": title,
        "x": list(x),
        "yLabel": y_label,
        "yRange": list(limits),
        "series": series,
        "bands": list(bands),
        "legend": False,
        "sync": "rounds",
    }


def accuracy_chart(training: Training, points: Mapping[int, float], table: Table) -> Chart | None:
    """Return the kNN accuracy by round, with the other rows of the table as horizontal lines."""
    if not points:
        return None
    x = sorted(points)
    own: Series = {"label": "this run", "values": [points[number] for number in x], "colour": 0}
    series = [own]
    extent = list(points.values())
    common = dict(zip(training.rounds, training.overall.get("knn_common", []), strict=False))
    if any(value is not None for value in common.values()):
        values = [common.get(number) for number in x]
        series.append({"label": "shared model", "values": values, "colour": 4, "dash": 2})
        extent += filter(None, values)
    for number, row in enumerate(ordered_rows(table)):
        scores = table[row]
        if row != "this run" and "knn" in scores:
            mean = scores["knn"]["mean"]
            label = NAMES.get(row, row)
            style = {"colour": number % len(COLOURS), "dash": 1, "points": False}
            series.append({"label": label, "values": [mean] * len(x)} | style)
            extent += [mean, *counted_models(scores["knn"])]
    limits = accuracy_limits(extent)
    return make_chart("kNN accuracy", x, series, limits=limits, y_label="%")


def other_accuracy_chart(points: Mapping[int, float]) -> Chart | None:
    """Return the kNN accuracy on the images of `probe.on`, by round."""
    if not points:
        return None
    series: Series = {"label": "this run", "values": list(points.values()), "colour": 0}
    limits = accuracy_limits(points.values())
    title = "kNN accuracy on other images"
    return make_chart(title, list(points), [series], limits=limits, y_label="%")


def overall_chart(
    title: str,
    training: Training,
    lines: Mapping[str, str],
    *,
    y_label: str = "",
    unit: float = 1.0,
) -> Chart | None:
    """Return a chart of values by round, divided by `unit`; `lines` are labels by metric."""
    positions = shown_rounds(len(training.rounds))
    series = []
    for number, (metric, label) in enumerate(lines.items()):
        values = training.overall.get(metric, [])
        if any(value is not None for value in values):
            chosen = _rounded(values, positions, unit)
            series.append({"label": label, "values": chosen, "colour": number, "dash": number})
    if not series:
        return None
    x = [training.rounds[position] for position in positions]
    return make_chart(title, x, series, y_label=y_label, zero=True)


def metric_title(metric: str) -> str:
    """Return the title of a metric; numbers that an algorithm adds are marked as such."""
    if metric in CLIENT_METRICS:
        return CLIENT_METRICS[metric]
    name = metric.removeprefix(NOTE)
    return f"{SYMBOLS.get(name, name)} (of the algorithm)"


def _begins_at_zero(metric: str) -> bool:
    """True if the axis of a metric begins at 0; numbers of algorithms are mostly weights."""
    return metric in FROM_ZERO or metric.startswith(NOTE)


def client_chart(training: Training, metric: str) -> Chart | None:
    """Return a metric by round: a line for each client, or quantiles of many clients."""
    title = metric_title(metric)
    every = {}
    for client, series in training.clients.items():
        if any(value is not None for value in series.get(metric, [])):
            every[client] = series[metric]
    if not every:
        return None
    positions = shown_rounds(len(training.rounds))
    if len(training.clients) > MAX_CLIENT_LINES:
        chart = _quantile_chart(title, training, metric, positions)
    else:
        x = [training.rounds[position] for position in positions]
        lines = _client_lines(training, metric, every, positions)
        chart = make_chart(title, x, lines, zero=_begins_at_zero(metric))
    return chart | {"hint": HINTS.get(metric)}


def _client_lines(
    training: Training, metric: str, every: Mapping[str, Values], positions: Sequence[int]
) -> list[Series]:
    """Return a line for each client, one for all, and the loss of random guessing if known."""
    lines = []
    for number, client in enumerate(training.clients):
        if client in every:
            values = _rounded(every[client], positions)
            line: Series = {"label": model_title(client), "values": values, "client": number}
            lines.append(line | {"colour": number % 6, "dash": number // 6, "width": 1.5})
    if len(every) > 1:
        lines.append(_overall_line(training, metric, positions))
    chance = training.overall.get("chance")
    if metric == "loss" and chance is not None:
        values = _rounded(chance, positions)
        style = {"colour": OVERALL, "dash": 2, "width": 1.5, "points": False}
        lines.append({"label": "random guessing", "values": values} | style)
    return lines


def _overall_line(training: Training, metric: str, positions: Sequence[int]) -> Series:
    """Return the mean loss as the log has it, or the median over clients of another metric."""
    style = {"colour": OVERALL, "width": 3}
    if metric == "loss":
        values = _rounded(training.overall["loss"], positions)
        return {"label": "mean of all", "values": values} | style
    medians = [training.median(metric, position) for position in positions]
    values = _rounded(medians, range(len(medians)))
    return {"label": "median", "values": values} | style


def _quantile_chart(title: str, training: Training, metric: str, positions: Sequence[int]) -> Chart:
    """Return bands of the middle half and of 90% of the clients, around their median."""
    x = [training.rounds[position] for position in positions]
    rows: list[Values] = []
    for position in positions:
        known = training.known(metric, position)
        if known:
            rows.append(list(map(float, np.percentile(known, QUANTILES))))
        else:
            rows.append([None] * len(QUANTILES))
    series = []
    for column, percent in enumerate(QUANTILES):
        values = _rounded([row[column] for row in rows], range(len(rows)))
        line: Series = {"label": f"{percent}% quantile", "values": values, "colour": 0}
        if percent == 50:
            series.append(line | {"label": "median over clients", "width": 3})
        else:
            series.append(line | {"width": 0.5, "points": False})
    bands = [{"high": 4, "low": 0}, {"high": 3, "low": 1}]
    return make_chart(title, x, series, bands=bands, zero=_begins_at_zero(metric))


def figure(identifier: str, chart: Chart) -> Markup:
    """Return the place of a chart, with a description for readers who do not see it."""
    hint = tag("span", chart["hint"], class_="hint") if chart.get("hint") else None
    caption = tag("figcaption", chart["title"], hint, _key(chart))
    drawing = tag(
        "div", class_="chart", data_chart=identifier, role="img", aria_label=_describe(chart)
    )
    return tag("figure", caption, drawing)


def _key(chart: Chart) -> Markup:
    """Return the names of the lines that no switch names; "" if there is only one line."""
    if len(chart["series"]) < 2:
        return join()
    items = []
    for line in chart["series"]:
        if "client" not in line and line.get("width", 2) >= 1:
            mark = tag("span", class_=f"line-mark mark-{line['colour']} dash-{line.get('dash', 0)}")
            items.append(tag("li", mark, line["label"]))
    return tag("ul", *items, class_="key")


def _describe(chart: Chart) -> str:
    """Return the first and the last value of the main lines of a chart."""
    texts = []
    for line in chart["series"][:6]:
        known = [value for value in line["values"] if value is not None]
        if known:
            texts.append(f"{line['label']} from {known[0]:.4g} to {known[-1]:.4g}")
    return f"{chart['title']}: {'; '.join(texts)}"


def client_switches(clients: Sequence[str]) -> Markup:
    """Return buttons that show and hide clients in all charts; "" for one client or very many."""
    if not 1 < len(clients) <= MAX_CLIENT_LINES:
        return join()
    buttons = []
    for number, client in enumerate(clients):
        buttons.append(
            tag(
                "button",
                tag("span", class_=f"line-mark mark-{number % 6} dash-{number // 6}"),
                model_title(client),
                type="button",
                aria_pressed="true",
                data_client=number,
            )
        )
    every = tag("button", "all", type="button", data_clients="all")
    none = tag("button", "none", type="button", data_clients="none")
    label = tag("span", "Clients:", class_="muted")
    return tag("div", label, every, none, *buttons, class_="chips", role="group")
