"""The median of the clients' models, coordinate by coordinate.

Yin et al., "Byzantine-robust distributed learning: Towards optimal statistical rates", ICML 2018,
Algorithm 1, option I.
Departures: models are averaged, not gradients; running statistics too.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fedssl.algorithm import Averaging
from fedssl.core.state.state import State
from fedssl.engine.means import middle_values
from fedssl.engine.means.held_models import HeldModels
from fedssl.engine.means.mean_settings import MEANS, MeanSettings

MIN_UPLOADS = 3  # the median of two is their mean


@MEANS.register("median")
class Median(MeanSettings):
    """The median of each coordinate. Fewer than half of the clients cannot move it out of the
    others' range."""

    def shortage(self, uploads: int) -> str | None:
        """Return why this many uploads are too few."""
        if uploads >= MIN_UPLOADS:
            return None
        return f"the median needs at least {MIN_UPLOADS} uploads, but there are {uploads}"

    def start(self) -> Averaging:
        """Return a median without models."""
        return HeldModels(median, self.shortage)


def median(models: Sequence[State]) -> Tensor:
    """Return the median of the float rows of models of one layout."""
    return middle_values.median([model.floats for model in models])
