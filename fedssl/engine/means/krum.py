"""Krum: the one model that is nearest to its neighbours; Multi-Krum: the mean of several such.

Blanchard et al., "Machine learning with adversaries: Byzantine tolerant gradient descent", NeurIPS
2017. The score of a model is the sum of its squared distances to the n − f − 2 nearest others; the
models with the smallest scores are chosen.
Departures: models are compared, not gradients: all clients start from one model, so that distances
are equal. Distances are over parameters. Running statistics, whose scale is another, are the
medians over all clients: a client with honest weights could otherwise choose them alone. Of equal
scores, the model with the first smaller parameter comes first, in whatever order models arrive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cmp_to_key

import torch
from pydantic import Field
from torch import Tensor

from fedssl.algorithm import Averaging
from fedssl.core.state.layout import PARAMETERS, Role
from fedssl.core.state.mean import Mean
from fedssl.core.state.state import State
from fedssl.engine.means.held_models import HeldModels
from fedssl.engine.means.mean_settings import MEANS, MeanSettings
from fedssl.engine.means.middle_values import median

PIECE_VALUES = 1 << 20  # of all models together, in one piece: 8 MB in float64
OTHERS: tuple[Role, ...] = ("statistic", "buffer")


@MEANS.register("krum")
class Krum(MeanSettings):
    """The model that is nearest to its neighbours; f bad clients are tolerated."""

    f: int = Field(1, ge=0)  # bad clients that are assumed; 2 f + 3 uploads are needed

    def shortage(self, uploads: int) -> str | None:
        """Return why this many uploads are too few."""
        return shortage(uploads, self.f)

    def start(self) -> Averaging:
        """Return a Krum without models."""
        return HeldModels(self._choose, self.shortage)

    def _choose(self, models: Sequence[State]) -> Tensor:
        return krum(models, self.f, keep=1)


@MEANS.register("multi-krum")
class MultiKrum(MeanSettings):
    """The mean of the models that are nearest to their neighbours."""

    f: int = Field(1, ge=0)  # bad clients that are assumed; 2 f + 3 uploads are needed
    # m: models that are averaged; none: n − f − 2 of n, the most with a proof
    keep: int | None = Field(None, ge=1)

    def shortage(self, uploads: int) -> str | None:
        """Return why this many uploads are too few."""
        too_few = shortage(uploads, self.f)
        if too_few is None and self.keep is not None and self.keep > uploads - self.f:
            return (
                f"Multi-Krum with mean.keep = {self.keep} and mean.f = {self.f} needs at least "
                f"{self.keep + self.f} uploads, but there are {uploads}"
            )
        return too_few

    def start(self) -> Averaging:
        """Return a Multi-Krum without models."""
        return HeldModels(self._choose, self.shortage)

    def _choose(self, models: Sequence[State]) -> Tensor:
        keep = self.keep or len(models) - self.f - 2
        return krum(models, self.f, keep)


def shortage(uploads: int, f: int) -> str | None:
    """Return why Krum cannot tolerate f bad ones of this many uploads; None if it can."""
    needed = 2 * f + 3
    if uploads >= needed:
        return None
    return (
        f"Krum with mean.f = {f} needs at least {needed} uploads (2 f + 3), but there are {uploads}"
    )


def krum(models: Sequence[State], f: int, keep: int) -> Tensor:
    """Return the float row of the mean of the `keep` models with the smallest scores."""
    scores = krum_scores(squared_distances(models), f)

    def compare(i: int, j: int) -> int:
        difference = scores[i] - scores[j]
        if difference == 0:
            difference = first_difference(models[i], models[j])
        return (difference > 0) - (difference < 0)

    ranked = sorted(range(len(models)), key=cmp_to_key(compare))
    merged = _plain_mean([models[i] for i in ranked[:keep]])
    slices = zip(
        merged.float_slices(OTHERS), *(model.float_slices(OTHERS) for model in models), strict=True
    )
    for target, *values in slices:
        target.copy_(median(values))
    return merged.floats


def _plain_mean(models: Sequence[State]) -> State:
    """Return the mean of models as a new state; a sum in double precision needs more memory."""
    if len(models) == 1:
        return models[0].clone()
    mean = Mean()
    for model in models:
        mean.add(model, 1.0)
    return mean.result()


def krum_scores(squares: Tensor, f: int) -> list[float]:
    """Return each model's sum of squared distances to the n − f − 2 nearest, of squares (n, n)."""
    n = len(squares)
    nearest = squares.sort(dim=1).values[:, 1 : n - f - 1]  # the first is the model itself
    scores: list[float] = nearest.sum(dim=1).tolist()
    return scores


def squared_distances(models: Sequence[State]) -> Tensor:
    """Return the squared distances (n, n) over parameters, in float64, on the CPU."""
    n = len(models)
    pairs = torch.zeros(n * (n - 1) // 2, dtype=torch.float64)
    length = max(1, PIECE_VALUES // n)
    for rows in zip(*(model.float_slices(PARAMETERS) for model in models), strict=True):
        for pieces in zip(*(values.split(length) for values in rows), strict=True):
            distances = torch.pdist(torch.stack(pieces).double())
            pairs += distances.square().cpu()
    squares = torch.zeros(n, n, dtype=torch.float64)
    above = torch.triu_indices(n, n, offset=1)
    # A model with NaN is as far away as can be; NaN itself would compare as equal to any score.
    squares[above[0], above[1]] = torch.where(pairs.isnan(), math.inf, pairs)
    return squares + squares.T


def first_difference(one: State, other: State) -> float:
    """Return the first difference of two models' parameters; 0 if they are equal."""
    for mine, theirs in zip(
        one.float_slices(PARAMETERS), other.float_slices(PARAMETERS), strict=True
    ):
        different = (mine != theirs).nonzero()
        if len(different):
            position = int(different[0])
            return float(mine[position]) - float(theirs[position])
    return 0.0
