"""Hold all models of a mean until it is computed, for means that cannot be computed as a sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedssl.core.errors import TooFewUploadsError
from fedssl.core.state.state import State


class HeldModels:
    """A mean that needs all models at once. It holds them, unchanged, and ignores their weights.

    `combine` returns the mean of the float rows (n,) of models of one layout. Of each counter, the
    lower median is taken: with the maximum, one client would set it alone.
    """

    def __init__(
        self,
        combine: Callable[[Sequence[State]], Tensor],
        shortage: Callable[[int], str | None],
    ) -> None:
        self._combine = combine
        self._shortage = shortage
        self._models: list[State] = []

    def add(self, state: State, weight: float) -> None:
        """Hold a model. Its weight is not used: a client that declares it could set it at will."""
        if self._models and state.layout != self._models[0].layout:
            raise ValueError(self._models[0].layout.first_difference(state.layout))
        self._models.append(state)

    def result(self) -> State:
        """Return the mean; raise TooFewUploadsError if there are too few models for it."""
        shortage = self._shortage(len(self._models))
        if shortage is not None:
            raise TooFewUploadsError(shortage)
        counts = torch.stack([state.counts for state in self._models])
        middle = (len(self._models) - 1) // 2
        counters = counts.sort(dim=0).values[middle].clone()
        return State(self._models[0].layout, self._combine(self._models), counters)
