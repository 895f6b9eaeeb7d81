"""Angles between what different models make of the same images (Zhang et al., FedCA, Figure 4).

For each pair of models (a, b) and each test image x: the angle between the vectors f_a(x) and f_b(x), scaled to unit
length, that is arccos ⟨f_a(x), f_b(x)⟩ in degrees. A pair's distribution over images is summed up by its quartiles, as
the paper's boxes do, and by its mean.

What the paper leaves open: whether a representation is the backbone's output or the projection (`what`, here the
backbone's unless told otherwise); which two of its five local models it drew (here all pairs); in which rounds within
"the learning process" (here one moment, that of the checkpoint); and what the whiskers of its boxes are (here the 5th
and 95th percentile). Its local models are those of one round before they are averaged: `local=true`. Without that,
models are compared that clients have of their own: isolated ones, peers', or personalised.

Features behind a ReLU have no negative entries, so their angles lie between 0 and 90 degrees. An angle says nothing of
whether one space is the other one turned: two models as good as each other may be 90 degrees apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from fedssl.analysis.analysis import ANALYSES, Found, Summary, listed
from fedssl.analysis.features import OfFeatures, reader
from fedssl.analysis.look import COLOURS, figure, matrix
from fedssl.data.progress import Say
from fedssl.errors import ConfigError
from fedssl.run import Run

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
BOXES = 40  # pairs that have a box of their own


def angles(one: Tensor, other: Tensor) -> Tensor:
    """Degrees (n,) between the rows of two tensors (n, d) of unit rows.

    2·atan2(‖a − b‖, ‖a + b‖) rather than arccos ⟨a, b⟩, which near 0 loses half of the digits.
    """
    return torch.rad2deg(2 * torch.atan2((one - other).norm(dim=1), (one + other).norm(dim=1)))


def pairwise(features: Mapping[str, Tensor]) -> dict[str, Any]:
    """Of every two models: the mean angle, as a matrix, and the quantiles over images."""
    widths = {each.shape[1] for each in features.values()}
    if len(widths) > 1:
        raise ConfigError(f"models with features of {sorted(widths)} numbers have no angle between them")
    names = list(features)
    mean = torch.zeros(len(names), len(names), dtype=torch.float64)
    pairs = []
    for i, j in combinations(range(len(names)), 2):
        found = angles(features[names[i]], features[names[j]])
        mean[i, j] = mean[j, i] = found.mean()
        cuts = torch.quantile(found, torch.tensor(QUANTILES, dtype=found.dtype))
        pairs.append({"pair": [names[i], names[j]], "mean": float(found.mean()), "quantiles": listed(cuts.tolist())})
    return {"models": names, "mean": [listed(row) for row in mean.tolist()], "pairs": pairs}


@ANALYSES.register("angles")
class Angles(OfFeatures):
    def measure(self, runs: Sequence[Run], say: Say) -> Found:
        read = reader(say)
        features, test = self.features(self.chosen(runs, read, say, fewest=2), read, say)
        return {"images": len(test), "percentiles": [100 * q for q in QUANTILES], **pairwise(features)}

    def draw(self, found: Found) -> Any:
        drawn, axes = figure(1, 2, width=5.5, height=4.6)
        matrix(drawn, axes[0, 0], found["mean"], found["models"], "mean angle (degrees)")
        axes[0, 0].set_title("between models")
        _boxes(axes[0, 1], found["pairs"], found["images"])
        return drawn

    def summary(self, found: Found) -> Summary:
        rows = [
            [" – ".join(pair["pair"]), *(f"{x:.1f}" for x in (pair["mean"], *pair["quantiles"]))]
            for pair in sorted(found["pairs"], key=lambda pair: pair["mean"])
        ]
        columns = ["models", "mean", *(f"{p:.0f}%" for p in found["percentiles"])]
        return Summary(f"angles in degrees, percentiles over {found['images']} test images", columns, rows)


def _boxes(axes: Any, pairs: Sequence[Mapping[str, Any]], images: int) -> None:
    """A box for each pair, from the quantiles alone; of many pairs every so many-th, ordered by their median."""
    ordered = sorted(pairs, key=lambda pair: pair["quantiles"][2])
    shown = ordered[:: -(-len(ordered) // BOXES)]
    stats = [
        dict(zip(("whislo", "q1", "med", "q3", "whishi"), pair["quantiles"], strict=True))
        | {"label": "–".join(pair["pair"]), "fliers": []}
        for pair in shown
    ]
    drawn = axes.bxp(stats, showfliers=False, patch_artist=True)
    for box in drawn["boxes"]:
        box.set(facecolor=COLOURS[4], alpha=0.5)
    for line in drawn["medians"]:
        line.set(color=COLOURS[1])
    axes.set(ylabel="angle (degrees)", ylim=(0, None), title=f"over {images} test images, 5th to 95th percentile")
    axes.grid(alpha=0.3, axis="y")
    long = max(len(each["label"]) for each in stats) * len(stats) > 60
    axes.tick_params(axis="x", labelrotation=90 if long else 0, labelsize=8)
    if len(shown) < len(ordered):
        axes.set_xlabel(f"{len(shown)} of {len(ordered)} pairs, ordered by their median")
