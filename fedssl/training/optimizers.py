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

NO_GRADIENTS: Mapping[int, Tensor] = MappingProxyType({})


class Follower(NamedTuple):
    """A moving average of the slice of an optimizer's row that begins at `start`.

    After each step `row` (m,) moves by `share` of the way to it. `low`, a bfloat16 copy of `row`,
    is kept up to date.
    """

    row: Tensor
    low: Tensor | None
    share: float
    start: int

    @property
    def end(self) -> int:
        """End of the slice of the optimizer's row."""
        return self.start + len(self.row)


class Optimizer(ABC):
    """Moves `row` (n,) along `grad` (n,); `decay` is one number or one per element.

    `low` may be set to a bfloat16 copy of the row, which is then kept up to date. An optimizer that
    `leads` may also have a `follower`, which it moves in every step.
    """

    low: Tensor | None = None
    follower: Follower | None = None
    leads: ClassVar[bool] = False
    # Gradients of at least this size may be passed separately from the row; None: no gradients.
    large: ClassVar[int | None] = None

    def __init__(self, row: Tensor, decay: float | Tensor) -> None:
        self.row = row
        self.decay = decay
        self.rate = torch.zeros((), device=row.device)

    @abstractmethod
    def tensors(self) -> list[Tensor]:
        """Return the tensors that a step changes, except the row."""

    def reset(self) -> None:
        """Set the state of earlier rounds to zero, in place."""
        for tensor in self.tensors():
            tensor.zero_()

    def step(self, grad: Tensor, separate: Mapping[int, Tensor] = NO_GRADIENTS) -> None:
        """Update the row; `grad` may be overwritten.

        `separate` are gradients (m,) stored elsewhere, by their offset in `grad`.
        """
        self._move(grad)
        if self.low is not None:
            self.low.copy_(self.row)

    @abstractmethod
    def _move(self, grad: Tensor) -> None:
        """Move the row along a gradient (n,)."""


class SGD(Optimizer):
    """Momentum as in torch.optim.SGD: the first step's buffer is the gradient itself."""

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
    """SGD on CUDA in one pass over memory, with one decay for all parameters.

    Large gradients are read in place. A follower is moved in the same pass, while the new values
    are in registers.
    """

    decay: float
    large = 1 << 20
    leads = True

    def step(self, grad: Tensor, separate: Mapping[int, Tensor] = NO_GRADIENTS) -> None:
        end = 0
        for start in sorted(separate):
            self._sweep(end, grad[end:start])
            self._sweep(start, separate[start])
            end = start + len(separate[start])
        self._sweep(end, grad[end:])

    def _sweep(self, start: int, grad: Tensor) -> None:
        """Move along a gradient (m,) at offset `start`, cut where the follower begins and ends.

        A kernel moves the follower for all of its slice or for none of it.
        """
        cuts = {0, len(grad)}
        if self.follower is not None:
            for boundary in (self.follower.start, self.follower.end):
                if start < boundary < start + len(grad):
                    cuts.add(boundary - start)
        for first, last in pairwise(sorted(cuts)):
            self._launch(slice(start + first, start + last), grad[first:last])

    def _launch(self, span: slice, grad: Tensor) -> None:
        """Move one slice of the row, and the follower's slice that corresponds to it."""
        from fedssl.core.kernels.update import sgd  # needs Triton, which needs CUDA

        optimized = (
            self.row[span],
            _sliced(self.low, span),
            self.buffer[span],
            grad,
            self.rate,
            self.decay,
            self.momentum,
        )
        follower = self.follower
        if follower is None or not follower.start <= span.start < follower.end:
            sgd(*optimized)
            return
        followed = slice(span.start - follower.start, span.stop - follower.start)
        sgd(*optimized, follower.row[followed], _sliced(follower.low, followed), follower.share)


class Adam(Optimizer):
    """Adam; `decoupled` makes it AdamW. The step number is a tensor, like the rate."""

    def __init__(
        self,
        row: Tensor,
        decay: float | Tensor,
        decoupled: bool,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        super().__init__(row, decay)
        self.decoupled = decoupled
        self.betas = betas
        self.eps = 1e-8
        self.first = torch.zeros_like(row)
        self.second = torch.zeros_like(row)
        self.steps = torch.zeros((), device=row.device)

    def tensors(self) -> list[Tensor]:
        return [self.first, self.second, self.steps]

    def _move(self, grad: Tensor) -> None:
        if self.decoupled:
            self.row.mul_(1 - self.rate * self.decay)
        else:
            _add_decay(grad, self.row, self.decay)
        beta1, beta2 = self.betas
        self.steps.add_(1)
        self.first.lerp_(grad, 1 - beta1)
        self.second.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        correction1 = 1 - beta1**self.steps
        correction2 = 1 - beta2**self.steps
        denominator = (self.second / correction2).sqrt_().add_(self.eps)
        self.row.sub_(self.first.div(denominator).mul_(self.rate / correction1))


def _sliced(row: Tensor | None, span: slice) -> Tensor | None:
    if row is None:
        return None
    return row[span]


def _add_decay(grad: Tensor, row: Tensor, decay: float | Tensor) -> None:
    if isinstance(decay, Tensor):
        grad.addcmul_(row, decay)
    elif decay:
        grad.add_(row, alpha=decay)
