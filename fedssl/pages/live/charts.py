"""The charts of the live page, as plain values for charts.js."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fedssl.pages.live.history import MAX_LINES, History, RoundPoint
from fedssl.plots.style import accuracy_limits

MAX_POINTS = 1000  # of a line: of a longer run, the means of consecutive rounds are drawn
Value = Callable[[RoundPoint], float | None]
TITLES = {"divergence": "Divergence of clients", "effective_rank": "Effective rank of features"}
AXES = {"divergence": "L2 norm of updates", "effective_rank": "effective rank"}


def charts(history: History) -> list[dict[str, Any]]:
    """Return the charts that have any value; all have the same range of rounds."""
    drawn = [
        _chart(history, "loss", "Training loss", "loss", [("mean of clients", _loss)]),
        _chart(history, "knn", "kNN accuracy", "accuracy (%)", _knn_lines(history)),
        _chart(history, "epsilon", "Privacy spent", "ε", [("ε", lambda point: point.epsilon)]),
    ]
    for metric, title in TITLES.items():
        drawn.append(_chart(history, metric, title, AXES[metric], _metric_lines(history, metric)))
    shown = [chart for chart in drawn if chart["series"]]
    for chart in shown:
        chart["xRange"] = _rounds(history)
        if chart["name"] == "knn":
            _set_accuracy_range(chart)
    return shown


def _rounds(history: History) -> list[int]:
    """Return the first and the last round; they differ, because a chart needs some width."""
    first = history.points[0].round
    return [first, max(history.points[-1].round, first + 1)]


def _set_accuracy_range(chart: dict[str, Any]) -> None:
    """Set the ends of an axis of accuracies; its label states where it begins if not at 0."""
    values: list[float] = []
    for line in chart["series"]:
        values += [value for value in line["values"] if value is not None]
    low, high = accuracy_limits(values)
    chart["yRange"] = [low, high]
    if low > 0:
        chart["yLabel"] += f"; axis from {low:g}"


def _chart(
    history: History, name: str, title: str, axis: str, lines: Iterable[tuple[str, Value]]
) -> dict[str, Any]:
    """Return a chart of the lines that have any value, in the rounds that have any."""
    columns: dict[int, list[float | None]] = {}  # the value of each line, by round
    named = list(lines)
    for group in _groups(history.points):
        column = [_mean(map(value, group)) for _, value in named]
        if any(number is not None for number in column):
            columns[group[-1].round] = column
    series = []
    for position, (label, _) in enumerate(named):
        values = [column[position] for column in columns.values()]
        if any(number is not None for number in values):
            series.append({"label": label, "values": values})
    return {"name": name, "title": title, "yLabel": axis, "x": list(columns), "series": series}


def _groups(points: Sequence[RoundPoint]) -> list[Sequence[RoundPoint]]:
    """Return the rounds in groups of equal size, each of which is one point."""
    size = -(-len(points) // MAX_POINTS) or 1
    return [points[start : start + size] for start in range(0, len(points), size)]


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that exist, with six digits."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    return float(f"{sum(present) / len(present):.6g}")


def _loss(point: RoundPoint) -> float | None:
    return point.loss


def _knn_lines(history: History) -> list[tuple[str, Value]]:
    """Return the lines of the models' mean, the shared model, and the images of `probe.on`."""
    common = any(point.knn_common is not None for point in history.points)
    label = "mean of models" if common else "kNN"
    return [
        (label, lambda point: point.knn),
        ("shared model", lambda point: point.knn_common),
        ("on other images", lambda point: point.knn_on),
    ]


def _metric_lines(history: History, metric: str) -> list[tuple[str, Value]]:
    """Return a line for each client, or for the quartiles of many."""
    if len(history.clients) <= MAX_LINES:
        return [(_label(name), _of_client(metric, name)) for name in sorted(history.clients)]
    return [
        ("median", _quartile(metric, 1)),
        ("lower quartile", _quartile(metric, 0)),
        ("upper quartile", _quartile(metric, 2)),
    ]


def _label(client: str) -> str:
    """Return the name of a client; "client 3" for one that is named by a number only."""
    return f"client {client}" if client.isdigit() else client


def _of_client(metric: str, client: str) -> Value:
    return lambda point: point.by_client.get(metric, {}).get(client)


def _quartile(metric: str, position: int) -> Value:
    def value(point: RoundPoint) -> float | None:
        quartiles = point.quartiles.get(metric)
        return None if quartiles is None else quartiles[position]

    return value
