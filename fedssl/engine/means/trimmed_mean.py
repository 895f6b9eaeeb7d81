"""The mean of the clients' models without the largest and smallest values of each coordinate.

Yin et al., "Byzantine-robust distributed learning: Towards optimal statistical rates", ICML 2018,
Algorithm 1, option II.
Departures: models are averaged, not gradients; running statistics too. A share is rounded up, so
that a client that was dropped does not end the protection from another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import field_validator
from torch import Tensor

from fedssl.algorithm import Averaging
from fedssl.core.state.state import State
from fedssl.engine.means.held_models import HeldModels
from fedssl.engine.means.mean_settings import MEANS, MeanSettings
from fedssl.engine.means.middle_values import middle_values

ROUNDING = 1e-9  # 0.07 · 100 is 7.000000000000001, of which 8 would be the next integer


@MEANS.register("trimmed-mean")
class TrimmedMean(MeanSettings):
    """The mean of each coordinate without its largest and its smallest values."""

    # β: the share of uploads left out at each end, rounded up, or their number from 1 on
    trim: int | float = 0.2

    @field_validator("trim")
    @classmethod
    def _share_or_number(cls, trim: int | float) -> int | float:
        if 0 < trim < 0.5:
            return trim
        if trim >= 1 and trim == int(trim):
            return int(trim)
        raise ValueError("must be a share above 0 and below 0.5, or a number of uploads from 1 on")

    def trimmed(self, uploads: int) -> int:
        """Return how many of this many uploads are left out at each end."""
        if self.trim >= 1:
            return int(self.trim)
        share = math.ceil(self.trim * uploads - ROUNDING)
        return min(share, (uploads - 1) // 2)  # at least one value remains

    def shortage(self, uploads: int) -> str | None:
        """Return why this many uploads are too few."""
        trimmed = self.trimmed(uploads)
        if uploads > 2 * trimmed and trimmed > 0:
            return None
        left_out = max(1, trimmed)
        return (
            f"the trimmed mean leaves out {left_out} at each end (mean.trim = {self.trim:g}), so "
            f"it needs at least {2 * left_out + 1} uploads, but there are {uploads}"
        )

    def start(self) -> Averaging:
        """Return a trimmed mean without models."""
        return HeldModels(self._mean, self.shortage)

    def _mean(self, models: Sequence[State]) -> Tensor:
        rows = [model.floats for model in models]
        return middle_values(rows, self.trimmed(len(rows)))
