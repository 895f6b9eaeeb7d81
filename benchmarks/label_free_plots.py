"""The figure of benchmarks.label_free_scores: one point per run."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedssl.analysis import Results
from fedssl.plots.style import COLOURS, MARKERS, legend_below, new_figure

Row = Mapping[str, Any]


def has_both(row: Row, score: str, accuracy: str) -> bool:
    """True if a run has both the score and the accuracy."""
    return score in row["scores"] and accuracy in row["accuracies"]


def draw(results: Results, scores: Iterable[str], accuracy_names: Mapping[str, str]) -> Any:
    """Return a figure with a row for each setting and accuracy, and a column for each score."""
    whole: dict[tuple[str, str, str], Row] = {}  # the first correlation, over all methods
    for correlation in results["correlations"]:
        key = (correlation["setting"], correlation["accuracy"], correlation["score"])
        whole.setdefault(key, correlation)
    lines = list(dict.fromkeys((setting, accuracy) for setting, accuracy, _ in whole))
    shown = [score for score in scores if any(score == key[2] for key in whole)]
    methods = list(dict.fromkeys(row["method"] for row in results["runs"]))
    # The figure may be wider than a page: it is meant to be enlarged.
    figure, axes = new_figure(len(lines), len(shown), width=3.4, height=3.0, max_width=24.0)
    for (setting, accuracy), panels in zip(lines, axes, strict=True):
        rows = [row for row in results["runs"] if row["setting"] == setting]
        for score, panel in zip(shown, panels, strict=True):
            complete = [row for row in rows if has_both(row, score, accuracy)]
            _draw_points(panel, complete, methods, score=score, accuracy=accuracy)
            panel.set_title(_title(whole.get((setting, accuracy, score))), fontsize=9)
        label = f"{accuracy_names[accuracy]} accuracy (%)\n{textwrap.fill(setting, 34)}"
        panels[0].set_ylabel(label, fontsize=9)
    legend_below(figure, axes[0, :1])
    return figure


def _draw_points(
    axes: Any, rows: Sequence[Row], methods: Sequence[str], *, score: str, accuracy: str
) -> None:
    for number, method in enumerate(methods):
        same_method = [row for row in rows if row["method"] == method]
        axes.plot(
            [row["scores"][score] for row in same_method],
            [row["accuracies"][accuracy] for row in same_method],
            linestyle="",
            label=method,
            color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)],
        )
    axes.set_xlabel(score.replace("_", " "))
    axes.locator_params(axis="x", nbins=4)
    axes.grid(alpha=0.3)


def _title(correlation: Row | None) -> str:
    if correlation is None:
        return "no runs"
    rho = "too few or equal"
    if correlation["rho"] is not None:
        rho = f"ρ = {correlation['rho']:+.2f}".replace("-", "−")
    return f"{rho}, n = {correlation['runs']}"
