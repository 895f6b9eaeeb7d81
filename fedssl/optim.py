"""Optimizers on one flat row: a step is a few operations whatever the number of layers.

The learning rate is a 0-d tensor changed in place, so that a captured step sees every change.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

NONE: Mapping[int, Tensor] = MappingProxyType({})


class Follower(NamedTuple):
    """A moving average of the slice of an optimizer's row that begins at `start`: after each step `row` (m,) goes
    `share` of the way to it. `low`: a bfloat16 copy of `row`, kept up to date."""

    row: Tensor
    low: Tensor | None
    share: float
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.row)


class Optimizer(ABC):
    """Moves `row` (n,) along `grad` (n,); `decay` is the weight decay, one number or one per element. `low` may be set
    to a bfloat16 copy of the row, which is then kept up to date. An optimizer that `leads` may also be given a
    `follower`, which it then moves in every step."""

    low: Tensor | None = None
    follower: Follower | None = None
    leads: ClassVar[bool] = False
    large: ClassVar[int | None] = None  # gradients of so many numbers may come apart from the row; None: none may

    def __init__(self, row: Tensor, decay: float | Tensor) -> None:
        self.row, self.decay = row, decay
        self.rate = torch.zeros((), device=row.device)

    @abstractmethod
    def tensors(self) -> list[Tensor]:
        """What a step changes beside the row."""

    def reset(self) -> None:
        """Forget what earlier rounds left, in place."""
        for tensor in self.tensors():
            tensor.zero_()

    def step(self, grad: Tensor, apart: Mapping[int, Tensor] = NONE) -> None:
        """One update; `grad` may be overwritten. `apart`: gradients (m,) that lie elsewhere, by their place in it."""
        self._move(grad)
        if self.low is not None:
            self.low.copy_(self.row)

    @abstractmethod
    def _move(self, grad: Tensor) -> None: ...


class SGD(Optimizer):
    """Momentum as torch.optim.SGD has it: the first step's buffer is the gradient itself."""

    def __init__(self, row: Tensor, decay: float | Tensor, momentum: float) -> None:
        super().__init__(row, decay)
        self.momentum = momentum
        self.buffer = torch.zeros_like(row)

    def tensors(self) -> list[Tensor]:
        return [self.buffer]

    def _move(self, grad: Tensor) -> None:
        _add_decay(grad, self.row, self.decay)
        self.buffer.mul_(self.momentum).add_(grad)
        self.row.addcmul_(self.buffer, self.rate, value=-1)


class FusedSGD(SGD):
    """The same on CUDA in one pass over memory, large gradients read where they lie. One decay for all. A follower is
    moved in that pass too, while the new values are at hand."""

    decay: float
    large = 1 << 20
    leads = True

    def step(self, grad: Tensor, apart: Mapping[int, Tensor] = NONE) -> None:
        end = 0
        for start in sorted(apart):
            self._sweep(end, grad[end:start])
            self._sweep(start, apart[start])
            end = start + len(apart[start])
        self._sweep(end, grad[end:])

    def _sweep(self, start: int, grad: Tensor) -> None:
        """Along a gradient (m,) that belongs at `start`, cut where the follower begins and ends: what one kernel moves
        is followed as a whole or not at all."""
        ends = () if self.follower is None else (self.follower.start, self.follower.end)
        cuts = {0, len(grad), *(at - start for at in ends if start < at < start + len(grad))}
        for first, last in pairwise(sorted(cuts)):
            self._launch(slice(start + first, start + last), grad[first:last])

    def _launch(self, part: slice, grad: Tensor) -> None:
        from fedssl.kernels.update import sgd  # Triton is there only where CUDA is

        low = None if self.low is None else self.low[part]
        own = self.row[part], low, self.buffer[part], grad, self.rate, self.decay, self.momentum
        follower = self.follower
        if follower is None or not follower.start <= part.start < follower.end:
            sgd(*own)
            return
        behind = slice(part.start - follower.start, part.stop - follower.start)
        sgd(*own, follower.row[behind], None if follower.low is None else follower.low[behind], follower.share)


class Adam(Optimizer):
    """Adam; `decoupled` makes it AdamW. The step number is a tensor for the same reason as the rate."""

    def __init__(
        self, row: Tensor, decay: float | Tensor, decoupled: bool, betas: tuple[float, float] = (0.9, 0.999)
    ) -> None:
        super().__init__(row, decay)
        self.decoupled, self.betas, self.eps = decoupled, betas, 1e-8
        self.first, self.second = torch.zeros_like(row), torch.zeros_like(row)
        self.steps = torch.zeros((), device=row.device)

    def tensors(self) -> list[Tensor]:
        return [self.first, self.second, self.steps]

    def _move(self, grad: Tensor) -> None:
        if self.decoupled:
            self.row.mul_(1 - self.rate * self.decay)
        else:
            _add_decay(grad, self.row, self.decay)
        self.steps.add_(1)
        self.first.lerp_(grad, 1 - self.betas[0])
        self.second.mul_(self.betas[1]).addcmul_(grad, grad, value=1 - self.betas[1])
        correction1, correction2 = (1 - beta**self.steps for beta in self.betas)
        denominator = (self.second / correction2).sqrt_().add_(self.eps)
        self.row.sub_(self.first.div(denominator).mul_(self.rate / correction1))


def _add_decay(grad: Tensor, row: Tensor, decay: float | Tensor) -> None:
    if isinstance(decay, Tensor):
        grad.addcmul_(row, decay)
    elif decay:
        grad.add_(row, alpha=decay)
