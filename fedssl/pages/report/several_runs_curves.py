"""The curves of a report on several runs: a line for each setting, with a band over its seeds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedssl.pages.report.charts import (
    FROM_ZERO,
    MAX_CLIENT_LINES,
    Chart,
    figure,
    make_chart,
    shown_rounds,
)
from fedssl.pages.report.document import Part
from fedssl.pages.report.markup import Content, Markup, join, paragraph, tag
from fedssl.pages.report.training import Training
from fedssl.plots.style import accuracy_limits
from fedssl.runs.compare import Group, knn_curve

Bands = dict[int, tuple[float, float, float]]  # mean, lowest, highest by round


def curves_part(
    groups: Sequence[Group], trainings: Mapping[Path, Training], charts: dict[str, Chart]
) -> Part:
    """Return curves by round: a line for each setting, with a band over its seeds."""
    figures = []
    candidates = {"accuracy": _accuracy_curves(groups)}
    for metric, name in (("loss", "loss"), ("effective_rank", "effective rank")):
        candidates[metric] = _metric_curves(groups, trainings, metric, name)
    for name, chart in candidates.items():
        if chart is not None:
            charts[name] = chart
            figures.append(figure(name, chart))
    content: list[Content] = [_switches(groups), tag("div", *figures, class_="charts")]
    text = "A line is the mean over seeds, the band around it has all seeds."
    if any(len(group.runs) > 1 for group in groups):
        content.append(paragraph(text, "muted"))
    return Part("rounds", "By round", "Curves", content)


def _switches(groups: Sequence[Group]) -> Markup:
    """Return buttons that show and hide a setting in all charts."""
    if not 1 < len(groups) <= MAX_CLIENT_LINES:
        return join()
    buttons: list[Content] = [tag("span", "Settings:", class_="muted")]
    for number, group in enumerate(groups):
        mark = tag("span", class_=f"line-mark mark-{number % 6} dash-{number // 6}")
        buttons.append(
            tag("button", mark, group.label, type="button", aria_pressed="true", data_client=number)
        )
    return tag("div", *buttons, class_="chips", role="group", aria_label="settings")


def _accuracy_curves(groups: Sequence[Group]) -> Chart | None:
    curves: list[Bands] = []
    extent: list[float] = []
    for group in groups:
        curves.append({})
        if all(run.results.get("table") for run in group.runs):
            for point in knn_curve(group):
                curves[-1][point.round] = (point.mean, point.low, point.high)
                extent += [point.low, point.high]
    if not extent:
        return None
    limits = accuracy_limits(extent)
    return _band_chart("kNN accuracy", groups, curves, limits, y_label="%")


def _metric_curves(
    groups: Sequence[Group], trainings: Mapping[Path, Training], metric: str, name: str
) -> Chart | None:
    curves = []
    for group in groups:
        seeds = [_values_by_round(trainings[run.folder], metric) for run in group.runs]
        band: Bands = {}
        for number in sorted(set.intersection(*map(set, seeds))):
            values = [seed[number] for seed in seeds]
            band[number] = (statistics.fmean(values), min(values), max(values))
        curves.append(band)
    if not any(curves):
        return None
    return _band_chart(name, groups, curves, None, zero=metric in FROM_ZERO)


def _values_by_round(training: Training, metric: str) -> dict[int, float]:
    """Return the loss of each round, or the median of another metric over clients."""
    values = {}
    for position, number in enumerate(training.rounds):
        if metric == "loss":
            value = training.overall["loss"][position]
        else:
            value = training.median(metric, position)
        if value is not None:
            values[number] = value
    return values


def _band_chart(
    title: str,
    groups: Sequence[Group],
    curves: Sequence[Bands],
    limits: tuple[float, float] | None,
    *,
    y_label: str = "",
    zero: bool = False,
) -> Chart:
    """Return a chart with a line for each group, and a band if its seeds differ."""
    every = sorted(set().union(*curves))
    x = [every[position] for position in shown_rounds(len(every))]
    series: list[dict[str, Any]] = []
    bands = []
    for number, (group, curve) in enumerate(zip(groups, curves, strict=True)):
        style = {"colour": number % 6, "dash": number // 6, "client": number}
        rows = [curve.get(each, (None, None, None)) for each in x]
        series.append({"label": group.label, "values": [row[0] for row in rows]} | style)
        if len(group.runs) > 1:
            quiet = style | {"width": 0, "points": False}
            low = {"label": f"{group.label}, lowest seed", "values": [row[1] for row in rows]}
            high = {"label": f"{group.label}, highest seed", "values": [row[2] for row in rows]}
            series += [low | quiet, high | quiet]
            bands.append({"high": len(series) - 1, "low": len(series) - 2})
    return make_chart(title, x, series, limits=limits, zero=zero, y_label=y_label, bands=bands)
