"""Angles between the features of the same images under different models (FedCA, Figure 4).

Zhang et al.: for each pair of models (a, b) and each test image x, the angle between the vectors
f_a(x) and f_b(x), scaled to unit length, that is arccos ⟨f_a(x), f_b(x)⟩ in degrees. The
distribution of a pair over images is summarised by its quartiles, as in the paper's boxes, and by
its mean.

The paper does not state whether a representation is the backbone's output or the projection
(`what`, by default the backbone's output); which two of its five local models it shows (here all
pairs); in which rounds within "the learning process" (here that of the checkpoint); and what the
whiskers of its boxes are (here the 5th and 95th percentile). Its local models are those of one
round before they are averaged: `local=true`. Without that, the final models of clients are
compared: isolated ones, peers', or personalised.

Features behind a ReLU have no negative entries, so their angles are between 0 and 90 degrees. An
angle does not show whether one space is a rotation of the other: two equally good models may be 90
degrees apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from fedssl.analysis.analysis import (
    ANALYSES,
    Results,
    Summary,
    format_numbers,
    round_digits,
    round_rows,
)
from fedssl.analysis.features import FeatureAnalysis, check_equal_widths, data_reader
from fedssl.core.console import Notify
from fedssl.plots.style import COLOURS, SMALL, draw_matrix, new_figure
from fedssl.runs.run import Run

PERCENTILES = (5.0, 25.0, 50.0, 75.0, 95.0)
BOX_PARTS = ("whislo", "q1", "med", "q3", "whishi")  # matplotlib's names of the percentiles
MAX_BOXES = 40
MAX_LABEL_CHARACTERS = 60  # of all labels together; longer ones are turned by 90 degrees


def angles(one: Tensor, other: Tensor) -> Tensor:
    """Return degrees (n,) between the rows of two tensors (n, d) of unit rows.

    2·atan2(‖a − b‖, ‖a + b‖) instead of arccos ⟨a, b⟩, which loses half of the digits near 0.
    """
    return torch.rad2deg(2 * torch.atan2((one - other).norm(dim=1), (one + other).norm(dim=1)))


def pairwise(features: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the mean angle of every two models, as a matrix, and the quantiles over images."""
    check_equal_widths(features)
    names = list(features)
    mean = torch.zeros(len(names), len(names), dtype=torch.float64)
    levels = torch.tensor(PERCENTILES, dtype=torch.float64) / 100
    pairs = []
    for i, j in combinations(range(len(names)), 2):
        degrees = angles(features[names[i]], features[names[j]])
        mean[i, j] = mean[j, i] = degrees.mean()
        quantiles = torch.quantile(degrees, levels.to(degrees.dtype))
        pairs.append(
            {
                "pair": [names[i], names[j]],
                "mean": float(degrees.mean()),
                "quantiles": round_digits(quantiles.tolist()),
            }
        )
    return {"models": names, "mean": round_rows(mean.tolist()), "pairs": pairs}


@ANALYSES.register("angles")
class Angles(FeatureAnalysis):
    """Measure the angles between features of the same test images under pairs of models."""

    def measure(self, runs: Sequence[Run], notify: Notify) -> Results:
        """Return the mean angle and quantiles of every pair of models."""
        read = data_reader(notify)
        models = self.select_models(runs, read, notify, min_models=2)
        features, test = self.features(models, read, notify)
        return {
            "images": len(test),
            "percentiles": list(PERCENTILES),
            **pairwise(features),
        }

    def draw(self, results: Results) -> Any:
        """Return a figure with the matrix of means and a box for each pair."""
        figure, axes = new_figure(1, 2, width=5.5, height=4.6)
        draw_matrix(
            figure,
            axes[0, 0],
            results["mean"],
            names=results["models"],
            label="mean angle (degrees)",
        )
        _draw_boxes(axes[0, 1], results["pairs"], results["images"])
        return figure

    def summary(self, results: Results) -> Summary:
        """Return a table of the pairs, ordered by their mean angle."""
        rows = []
        for pair in sorted(results["pairs"], key=lambda pair: pair["mean"]):
            cells = format_numbers([pair["mean"], *pair["quantiles"]], ".1f")
            rows.append([" – ".join(pair["pair"]), *cells])
        percentiles = [f"{percentile:.0f}%" for percentile in results["percentiles"]]
        return Summary(
            f"angles in degrees, percentiles over {results['images']} test images",
            ["models", "mean", *percentiles],
            rows,
        )


def _draw_boxes(axes: Any, pairs: Sequence[Mapping[str, Any]], images: int) -> None:
    """Draw a box for each pair from its quantiles; of many pairs a regular sample by median."""
    ordered = sorted(pairs, key=lambda pair: pair["quantiles"][2])
    shown = ordered[:: -(-len(ordered) // MAX_BOXES)]
    boxes = list(map(_box, shown))
    artists = axes.bxp(boxes, showfliers=False, patch_artist=True)
    for patch in artists["boxes"]:
        patch.set(facecolor=COLOURS[4], alpha=0.5)
    for line in artists["medians"]:
        line.set(color=COLOURS[1])
    axes.set(
        ylabel="angle (degrees)",
        ylim=(0, None),
        title=f"over {images} test images, 5th to 95th percentile",
    )
    axes.grid(alpha=0.3, axis="y")
    longest = max(len(box["label"]) for box in boxes)
    rotation = 90 if longest * len(boxes) > MAX_LABEL_CHARACTERS else 0
    axes.tick_params(axis="x", labelrotation=rotation, labelsize=SMALL)
    if len(shown) < len(ordered):
        axes.set_xlabel(f"{len(shown)} of {len(ordered)} pairs, ordered by their median")


def _box(pair: Mapping[str, Any]) -> dict[str, Any]:
    quantiles = dict(zip(BOX_PARTS, pair["quantiles"], strict=True))
    return quantiles | {"label": "–".join(pair["pair"]), "fliers": []}
