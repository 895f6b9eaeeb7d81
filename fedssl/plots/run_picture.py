"""picture.png: accuracy by round, final accuracies, gains, and maps before and after training."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedssl.plots.feature_map import MIN_MAPPED, scatter, tsne, unit
from fedssl.plots.style import (
    COLOURS,
    GREY,
    HATCHES,
    LINE_STYLES,
    MAX_WIDTH,
    SMALL,
    error_bar,
    legend_below,
    set_accuracy_axis,
    set_round_axes,
)

HEIGHT = 9.0  # inches
BAR_WIDTH = 0.36
NAME_WIDTH = 11  # characters in a line of a bar's name
TITLE_WIDTH = 130  # characters in a line of the title
THIS_RUN = "this run"
# Rows of the table in the order of bars; further rows follow with their own names.
NAMES = {
    THIS_RUN: "this run",
    "isolated": "each client alone",
    "random": "random backbone",
    "centralized": "all images pooled",
    "start": "start of training",
}
INTERVAL_STYLE: dict[str, Any] = {"color": "black", "capsize": 3, "linewidth": 1.2}
MODEL_STYLE: dict[str, Any] = {
    "marker": "o",
    "markersize": 4,
    "linestyle": "",
    "color": "white",
    "markeredgecolor": "black",
}
OTHER_STYLE: dict[str, Any] = {
    "marker": "s",
    "markersize": 4,
    "linestyle": ":",
    "color": "black",
}
PROBES = {"knn": "kNN", "linear": "linear probe"}

Table = Mapping[str, Mapping[str, Any]]
Rounds = Sequence[Mapping[str, Any]]
Intervals = Mapping[tuple[str, str], tuple[float, float]]  # (row, probe) -> ends in percent
# Over one baseline, by probe: estimate and the ends of its interval, in percentage points.
Gains = Mapping[str, tuple[float, float, float]]
MIN_GAIN = 5.0  # points on either side of 0 that the axis of gains shows at least


def draw_run(
    rounds: Rounds,
    table: Table,
    *,
    intervals: Intervals,
    gains: Gains | None = None,
    labels_learned: Mapping[str, int] | None = None,
    verdict: str = "",
    before: NDArray[np.float32],
    after: NDArray[np.float32],
    labels: NDArray[np.int64],
    classes: Sequence[str],
) -> Any:
    """Return the picture of a run as a figure, with the verdict as its title.

    `gains` are over the table's second row, `labels_learned` counts each probe's labelled images,
    and `before` and `after` are features (n, d) of the same n test images.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(MAX_WIDTH, HEIGHT), layout="constrained")
    if verdict:
        figure.suptitle(textwrap.fill(verdict, TITLE_WIDTH), fontsize="medium")
    top, bottom = figure.subfigures(2, 1, squeeze=False).flat
    curve, bars, *gain_panel = _top_panels(top, bool(gains))
    if THIS_RUN in table:
        _draw_curve(curve, rounds, table)
        _draw_bars(bars, table, intervals, labels_learned or {})
        for panel in gain_panel:
            _draw_gains(panel, gains or {}, list(_row_styles(table))[1])
        legend_below(top, [curve, bars])
    else:  # test images have labels for the maps, but probes have none to learn from
        top.suptitle("no accuracy was measured")
        curve.set_axis_off()
        bars.set_axis_off()
    left_map, right_map = bottom.subplots(1, 2)
    _draw_map(left_map, before, labels, classes, title="before training")
    _draw_map(right_map, after, labels, classes, title="after training")
    legend_below(bottom, [right_map], markerscale=2)
    return figure


def _top_panels(figure: Any, with_gains: bool) -> list[Any]:
    """Return the axes of the curve, of the bars and, if there are gains, of these."""
    widths = [1, 1.1, 0.6] if with_gains else [1, 1]
    return list(figure.subplots(1, len(widths), width_ratios=widths))


def _draw_gains(axes: Any, gains: Gains, baseline: str) -> None:
    """Draw the gain over a baseline by each probe, with its interval, and a line at 0."""
    shown = [-MIN_GAIN, MIN_GAIN]
    for number, (estimate, low, high) in enumerate(gains.values()):
        error = error_bar(estimate, (low, high))
        axes.errorbar([number], [estimate], yerr=error, marker="o", **INTERVAL_STYLE)
        axes.text(
            number + 0.08, estimate, f"{round(estimate, 1) + 0.0:+.1f}", va="center", fontsize=SMALL
        )
        shown += [low, high]
    axes.axhline(0, color=GREY, linewidth=1)
    names = [PROBES.get(probe, probe) for probe in gains]
    axes.set_xticks(range(len(names)), names)
    margin = 0.05 * (max(shown) - min(shown))
    axes.set(xlim=(-0.5, len(names) - 0.3), ylim=(min(shown) - margin, max(shown) + margin))
    axes.set(ylabel="points (paired)", title=f"gain over\n{NAMES.get(baseline, baseline)}")
    axes.grid(alpha=0.3, axis="y")
    axes.set_axisbelow(True)


def _draw_curve(axes: Any, rounds: Rounds, table: Table) -> None:
    """Draw the kNN accuracy by round, and the other rows of the table as horizontal lines."""
    set_round_axes(axes, "")
    extent: list[float] = []
    for name, style in _row_styles(table).items():
        if name == THIS_RUN:
            points = _knn_by_round(rounds, table)
            numbers, accuracies = zip(*points, strict=True)
            axes.plot(numbers, accuracies, marker="o", markersize=4, label=THIS_RUN, **style)
            extent += accuracies
            continue
        score = table[name]["knn"]
        label = NAMES.get(name, name)
        models = counted_models(score)
        if models:
            label += ": mean, range"
            axes.axhspan(min(models), max(models), color=style["color"], alpha=0.12, linewidth=0)
        axes.axhline(score["mean"], label=label, **style)
        extent += [score["mean"], *models]
    extent += _draw_other_images(axes, rounds)
    set_accuracy_axis(axes, extent, "kNN accuracy (%)")
    title = "accuracy by round"
    if any(line.get("differs") for line in rounds):
        title += "\n(not shown: accuracies measured otherwise)"
    axes.set_title(title)


def _draw_other_images(axes: Any, rounds: Rounds) -> list[float]:
    """Draw the accuracy on the images of `probe.on` by round; return it."""
    measured = [line for line in rounds if line.get("knn_on") is not None]
    accuracies = [line["knn_on"] for line in measured]
    if accuracies:
        numbers = [line["round"] for line in measured]
        axes.plot(numbers, accuracies, label="this run, on other images", **OTHER_STYLE)
    return accuracies


def ordered_rows(table: Table) -> list[str]:
    """Return the names of rows: known rows in the order of NAMES, then the others."""
    return [name for name in dict.fromkeys([*NAMES, *table]) if name in table]


def _row_styles(table: Table) -> dict[str, dict[str, str]]:
    """Return colour and dashes of each row: known rows in the order of NAMES, then the others."""
    styles = {}
    for number, name in enumerate(dict.fromkeys([*NAMES, *table])):
        if name in table:
            styles[name] = {
                "color": COLOURS[number % len(COLOURS)],
                "linestyle": LINE_STYLES[number % len(LINE_STYLES)],
            }
    return styles


def _knn_by_round(rounds: Rounds, table: Table) -> list[tuple[int, float]]:
    """Return measurements as (round, accuracy); those of the table are the first and the last."""
    accuracies: dict[int, float] = {}
    for name in ("start", "random"):
        if name in table:
            accuracies.setdefault(0, table[name]["knn"]["mean"])
    for line in rounds:
        if line["knn"] is not None:
            accuracies[line["round"]] = line["knn"]
    accuracies[len(rounds)] = table[THIS_RUN]["knn"]["mean"]
    return list(accuracies.items())


def counted_models(score: Mapping[str, Any]) -> list[float]:
    """Return the accuracies of single models, such as those of clients, if there are several."""
    counted = dict(score.get("models", {}))
    for name in score.get("excluded", score.get("apart", ())):  # "apart" in earlier versions
        del counted[name]
    return list(counted.values())


def _draw_bars(
    axes: Any, table: Table, intervals: Intervals, labels_learned: Mapping[str, int]
) -> None:
    """Draw the final accuracy of each row and probe, with its interval and the single models."""
    styles = _row_styles(table)
    probes = list(table[THIS_RUN])
    for row, (name, style) in enumerate(styles.items()):
        for number, probe in enumerate(probes):
            x = row + BAR_WIDTH * (number - (len(probes) - 1) / 2)
            score = table[name][probe]
            ends = intervals.get((name, probe))
            bar = {"color": style["color"], **_probe_style(number, probes)}
            _draw_bar(axes, x, score, ends=ends, bar=bar)
    names = []
    for name in styles:
        names.append(textwrap.fill(NAMES.get(name, name), NAME_WIDTH))
    axes.set_xticks(range(len(names)), names)
    axes.set(ylim=(0, 108), ylabel="accuracy (%)", title="final accuracy")
    axes.set_yticks(range(0, 101, 20))
    axes.grid(alpha=0.3, axis="y")
    axes.set_axisbelow(True)
    _add_marks(axes, table, probe_labels(probes, labels_learned), bool(intervals))


def _draw_bar(
    axes: Any,
    x: float,
    score: Mapping[str, Any],
    *,
    ends: tuple[float, float] | None,
    bar: Mapping[str, Any],
) -> None:
    """Draw one bar with its number, interval and single models."""
    mean = score["mean"]
    axes.bar(x, mean, BAR_WIDTH, **bar)
    models = counted_models(score)
    offsets = np.linspace(-0.25, 0.25, len(models)) * BAR_WIDTH
    axes.plot(x + offsets, models, **MODEL_STYLE)
    if ends is not None:
        axes.errorbar([x], [mean], yerr=error_bar(mean, ends), **INTERVAL_STYLE)
    highest = max([mean, *models, *(ends or ())])
    axes.text(x, highest + 2.5, f"{mean:.1f}", ha="center", fontsize=SMALL)


def _probe_style(number: int, probes: Sequence[str]) -> dict[str, Any]:
    """Return how the bars of a probe are filled: those of the last one plain, others hatched."""
    if number == len(probes) - 1:
        return {"alpha": 0.85}
    return {"alpha": 0.35, "hatch": HATCHES[1 + number], "edgecolor": "white"}


def probe_labels(probes: Sequence[str], labels_learned: Mapping[str, int]) -> dict[str, str]:
    """Return names of probes, with their numbers of labelled images if these differ."""
    differ = len(set(labels_learned.values())) > 1
    names = {}
    for probe in probes:
        names[probe] = PROBES.get(probe, probe)
        if differ and probe in labels_learned:
            names[probe] += f" ({labels_learned[probe]:,} labels)"
    return names


def _add_marks(axes: Any, table: Table, labels: Mapping[str, str], intervals: bool) -> None:
    """Add the meaning of bars, dots and error bars to the legend, as far as they are drawn.

    `labels` are the names of the probes in the legend.
    """
    probes = list(labels)
    for number, label in enumerate(labels.values()):
        axes.bar([0], [0], color=GREY, label=label, **_probe_style(number, probes))
    models = 0
    for row in table.values():
        models += len(counted_models(row[probes[0]]))
    if models:
        axes.plot([], [], label="single clients", **MODEL_STYLE)
    if intervals:
        axes.errorbar([], [], yerr=[], label="95% interval over test images", **INTERVAL_STYLE)


def _draw_map(
    axes: Any,
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    classes: Sequence[str],
    *,
    title: str,
) -> None:
    if len(features) < MIN_MAPPED:
        axes.text(0.5, 0.5, f"a map needs {MIN_MAPPED} test images", ha="center")
        axes.set_axis_off()
        return
    title = f"test images {title} (t-SNE)"
    scatter(axes, tsne(unit(features)), labels, classes=classes, title=title)
