"""Draw the kNN curves of several runs' rounds.jsonl into one picture.

python -m benchmarks.curves results/fedbyol-cifar10-short
"""

from __future__ import annotations

import sys
from pathlib import Path

from matplotlib.figure import Figure

from fedssl.plots.style import line_style, set_accuracy_axis, set_round_axes
from fedssl.runs.rounds_log import read_rounds


def main() -> None:
    folder = Path(sys.argv[1])
    figure = Figure(figsize=(7, 4.2), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    extent: list[float] = []
    for number, log in enumerate(sorted(folder.glob("*/rounds.jsonl"))):
        points = [
            (line["round"], line["knn"]) for line in read_rounds(log) if line["knn"] is not None
        ]
        rounds, accuracies = zip(*points, strict=True)
        label = f"{log.parent.name}: {accuracies[-1]:.1f}% at the end"
        axes.plot(rounds, accuracies, label=label, **line_style(number))
        extent += accuracies
    set_round_axes(axes, "")
    set_accuracy_axis(axes, extent, "kNN accuracy (%)")
    axes.set_title(folder.name)
    axes.legend(frameon=False)
    figure.savefig(folder / "knn.png")


if __name__ == "__main__":
    main()
