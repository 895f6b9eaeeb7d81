"""The weighted mean of states."""

from __future__ import annotations

import torch
from torch import Tensor

from fedssl.core.state import arithmetic
from fedssl.core.state.state import State


class Mean:
    """A weighted mean: one running float64 sum for any number of states; of counters, the maximum.

    A state is kept, unchanged, until the next one is added: adding two at a time halves the passes
    over the long sum.
    """

    def __init__(self) -> None:
        self._sum: State | None = None
        self._weight = 0.0
        self._pending: list[tuple[Tensor, float]] = []

    def add(self, state: State, weight: float) -> None:
        """Add a state with a weight."""
        if self._sum is None:
            floats = arithmetic.scale(state.floats, weight)
            self._sum = State(state.layout, floats, state.counts.clone())
        else:
            if state.layout != self._sum.layout:
                raise ValueError(self._sum.layout.first_difference(state.layout))
            self._pending.append((state.floats, weight))
            torch.maximum(self._sum.counts, state.counts, out=self._sum.counts)
            if len(self._pending) == 2:
                self._add_pending(self._sum.floats)
        self._weight += weight

    def result(self) -> State:
        """Return the mean of the states added so far; raise ValueError if there are none."""
        if self._sum is None or self._weight <= 0:
            raise ValueError("the mean has no state: add one with a positive weight first")
        self._add_pending(self._sum.floats)
        floats = arithmetic.divide(self._sum.floats, self._weight)
        return State(self._sum.layout, floats, self._sum.counts)

    def _add_pending(self, total: Tensor) -> None:
        arithmetic.add(total, self._pending)
        self._pending.clear()
