"""The figure of benchmarks.theory: measures over d, and by direction for the largest d."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedssl.analysis import Results
from fedssl.plots.style import COLOURS, line_style, new_figure

AXIS_LABELS = {
    "span": r"$\|\Pi_S(e_j)\|^2$ (Definition 3.1)",
    "correlation": r"$\sum_i\langle u_i,e_j\rangle^2$ (Prop. 4.1)",
}
WHERE = ("local, own direction", "local, other directions", "global")


def draw(results: Results, largest_d: int) -> Any:
    """Return a figure of both measures over d, and by direction for the largest d."""
    figure, axes = new_figure(2, 3, width=5, height=4)
    for column, learner in enumerate(("ssl", "sl")):
        for row, measure in enumerate(AXIS_LABELS):
            _draw_over_d(axes[row, column], results["by_d"], learner, measure)
    draws = [draw for draw in results["draws"] if draw["d"] == largest_d]
    _draw_directions(axes[0, 2], draws, "ssl", "span")
    _draw_directions(axes[1, 2], draws, "sl", "correlation")
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _draw_over_d(axes: Any, by_d: Sequence[Any], learner: str, measure: str) -> None:
    for number, where in enumerate(WHERE):
        wanted = {"learner": learner, "measure": measure, "where": where}
        rows = [row for row in by_d if wanted.items() <= row.items()]
        mean = [row["mean"] for row in rows]
        below = [row["mean"] - row["least"] for row in rows]
        above = [row["most"] - row["mean"] for row in rows]
        d = [row["d"] for row in rows]
        axes.errorbar(d, mean, [below, above], label=where, capsize=3, **line_style(number))
    slack = " (global: with slack)" if learner == "sl" else ""
    axes.set(
        xlabel="d", ylabel=AXIS_LABELS[measure], xscale="log", title=f"{learner.upper()}{slack}"
    )
    axes.set_ylim(0, 1.05 if measure == "span" else None)
    ticks = sorted({row["d"] for row in by_d})
    axes.set_xticks(ticks, [f"{d:,}" for d in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.3)


def _draw_directions(axes: Any, draws: Sequence[Any], learner: str, measure: str) -> None:
    """Draw the paper's Figure 3 in numbers: how well each learned space contains each direction."""
    tables = np.array(
        [[*draw[learner][measure]["local"], draw[learner][measure]["global"]] for draw in draws]
    )
    mean = tables.mean(0)
    K = tables.shape[2]
    spread = np.stack([mean - tables.min(0), tables.max(0) - mean])
    for j in range(K):
        axes.bar(
            np.arange(K + 1) + 0.8 * ((j + 0.5) / K - 0.5),
            mean[:, j],
            0.8 / K,
            yerr=spread[:, :, j],
            capsize=2,
            color=COLOURS[j % 7],
            label=f"$e_{j + 1}$",
        )
    axes.set_xticks(range(K + 1), [*(f"source {k + 1}" for k in range(K)), "global"])
    axes.set(ylabel=AXIS_LABELS[measure], title=f"{learner.upper()}, d = {draws[0]['d']:,}")
    axes.set_ylim(0, 1.2 * tables.max())
    axes.legend(frameon=False, ncols=K, fontsize=8, loc="upper center")
    axes.grid(alpha=0.3, axis="y")
