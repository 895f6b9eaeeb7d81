"""Draw the kNN curves of several runs' rounds.jsonl into one picture.

python -m benchmarks.curves results/fedbyol-cifar10-short
"""

from __future__ import annotations

import sys
from pathlib import Path

from matplotlib.figure import Figure

from fedssl.runs.rounds_log import read_rounds


def main() -> None:
    folder = Path(sys.argv[1])
    figure = Figure(figsize=(7, 4.2), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for log in sorted(folder.glob("*/rounds.jsonl")):
        points = [
            (line["round"], line["knn"]) for line in read_rounds(log) if line["knn"] is not None
        ]
        axes.plot(
            *zip(*points, strict=True),
            marker=".",
            label=f"{log.parent.name}: {points[-1][1]:.1f}% at the end",
        )
    axes.set(xlabel="round", ylabel="kNN accuracy on test images (%)", title=folder.name)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(folder / "knn.png")


if __name__ == "__main__":
    main()
