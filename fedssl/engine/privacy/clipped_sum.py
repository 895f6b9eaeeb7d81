"""A sum of clipped updates to which one client contributes at most `clip`, and its noised mean.

Updates are measured from one public model, the same for all clients of a round, and rounded towards
zero to whole multiples of a step that depends only on `clip` and `noise`. The sum is therefore
exact, in integers, and a client's part of it has an L2 norm of at most `clip`. Noise is rounded to
the same grid: rounding the sum of integers and Gaussian noise is a function of that sum alone, so
that it costs no privacy, and the result has the same possible values for any data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from fedssl.core.state.arithmetic import PIECE
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, model
from fedssl.engine.privacy.gaussian import secret_gaussians

# Steps per `clip` or standard deviation, whichever is larger. 2³² of a million clients fit in
# int64.
STEPS = 2**32
# Of `clip`: covers the rounding of a norm and of products in float64.
MARGIN = 2.0**-20


class ClippedSum:
    """The sum of clipped updates from `center`, the models that the clients of a round received."""

    def __init__(self, center: Mapping[str, State], clip: float, noise: float) -> None:
        """`noise` is the standard deviation of the noise in multiples of `clip`."""
        self.clip = clip
        self.step = 2.0 ** math.floor(math.log2(clip * max(noise, 1.0))) / STEPS
        self._center = center
        self._deviation = noise * clip
        self._totals = {}
        for key, state in center.items():
            self._totals[key] = torch.zeros_like(state.floats, dtype=torch.int64)

    def add(self, upload: Tree) -> None:
        """Add a client's update, scaled down to the clip if it is longer; nothing if not finite."""
        norm = self._norm(upload)
        if not math.isfinite(norm):
            return
        limit = self.clip * (1 - MARGIN)
        share = 1.0
        if norm > limit:
            share = limit / norm
        for key, total in self._totals.items():
            for target, update in self._updates(key, total, upload):
                update.mul_(share).div_(self.step).trunc_()
                target.add_(update.to(torch.int64))

    def totals(self) -> dict[str, Tensor]:
        """Return the sum under each key, in steps (n,) int64. Private: it has no noise."""
        return self._totals

    def noised_mean(self, clients: int) -> dict[str, State]:
        """Return center + (sum + noise) / clients; counters are those of the center. Call once."""
        released = {}
        for key, total in self._totals.items():
            start = self._center[key]
            floats = torch.empty_like(start.floats)
            pieces = zip(_pieces(floats), _pieces(total), _pieces(start.floats), strict=True)
            for target, steps, origin in pieces:
                mean = self._noised(steps).double().mul_(self.step / clients)
                target.copy_(mean.add_(origin))
            released[key] = State(start.layout, floats, start.counts.clone())
        return released

    def _noised(self, steps: Tensor) -> Tensor:
        """Return a part of the sum with noise, in steps."""
        if not self._deviation:
            return steps
        noise = torch.from_numpy(secret_gaussians(steps.numel()))
        noise.mul_(self._deviation / self.step).round_()
        return steps + noise.to(torch.int64).to(steps.device)

    def _norm(self, upload: Tree) -> float:
        """Return the L2 norm of an update over all models."""
        squares = [torch.zeros((), dtype=torch.float64)]
        for key, total in self._totals.items():
            for _, update in self._updates(key, total, upload):
                squares.append(update.square_().sum().cpu())
        return math.sqrt(torch.stack(squares).sum().item())

    def _updates(self, key: str, total: Tensor, upload: Tree) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield pieces of the total under a key, each with its part of the update (n,) float64."""
        back = model(upload, key)
        start = self._center[key]
        if back.layout != start.layout:
            raise ValueError(start.layout.first_difference(back.layout))
        pieces = zip(_pieces(total), _pieces(back.floats), _pieces(start.floats), strict=True)
        for target, end, origin in pieces:
            # A copy also of a float64 row: callers change the update in place.
            yield target, end.to(torch.float64, copy=True).sub_(origin)


def _pieces(row: Tensor) -> tuple[Tensor, ...]:
    """Return a row in pieces that fit in the processor's cache."""
    return tuple(row.split(PIECE))
