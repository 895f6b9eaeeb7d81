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


class EmaTarget(NamedTuple):
    """A moving average of `optimizer.row[start:end]`: after each step, `row.lerp_(slice, share)`.

    `row` is (m,); `bf16_copy`, if there is one, is set to `row` after each step.
    """

    row: Tensor
    bf16_copy: Tensor | None
    share: float
    start: int

    @property
    def end(self) -> int:
        """End of the slice of the optimizer's row."""
        return self.start + len(self.row)


class Optimizer(ABC):
    """Updates `row` (n,) from `grad` (n,); `decay` is one number or one per element.

    If `bf16_copy` is set, it receives a bfloat16 copy of the row after each step. If the optimizer
    `supports_ema` and `ema_target` is set, each step updates that too.
    """

    bf16_copy: Tensor | None = None
    ema_target: EmaTarget | None = None
    supports_ema: ClassVar[bool] = False
    # Gradients of at least this size may be passed separately from the row; None: no gradients.
    min_separate_size: ClassVar[int | None] = None

    def __init__(self, row: Tensor, decay: float | Tensor) -> None:
        self.row = row
        self.decay = decay
        self.lr = torch.zeros((), device=row.device)

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
        if self.bf16_copy is not None:
            self.bf16_copy.copy_(self.row)

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
        self.row.addcmul_(self.buffer, self.lr, value=-1)


class FusedSGD(SGD):
    """SGD on CUDA in one pass over memory, with one decay for all parameters.

    Large gradients are read in place. The EMA target is updated in the same pass, while the new
    values are in registers.
    """

    decay: float
    min_separate_size = 1 << 20
    supports_ema = True

    def step(self, grad: Tensor, separate: Mapping[int, Tensor] = NO_GRADIENTS) -> None:
        end = 0
        for start in sorted(separate):
            self._sweep(end, grad[end:start])
            self._sweep(start, separate[start])
            end = start + len(separate[start])
        self._sweep(end, grad[end:])

    def _sweep(self, start: int, grad: Tensor) -> None:
        """Move along a gradient (m,) at offset `start`, cut where the EMA target begins and ends.

        A kernel updates the EMA target for all of its slice or for none of it.
        """
        cuts = {0, len(grad)}
        if self.ema_target is not None:
            for boundary in (self.ema_target.start, self.ema_target.end):
                if start < boundary < start + len(grad):
                    cuts.add(boundary - start)
        for first, last in pairwise(sorted(cuts)):
            self._launch(slice(start + first, start + last), grad[first:last])

    def _launch(self, span: slice, grad: Tensor) -> None:
        """Move one slice of the row, and the corresponding slice of the EMA target."""
        from fedssl.core.kernels.update import sgd  # needs Triton, which needs CUDA

        optimized = (
            self.row[span],
            _sliced(self.bf16_copy, span),
            self.buffer[span],
            grad,
            self.lr,
            self.decay,
            self.momentum,
        )
        ema_target = self.ema_target
        if ema_target is None or not ema_target.start <= span.start < ema_target.end:
            sgd(*optimized)
            return
        followed = slice(span.start - ema_target.start, span.stop - ema_target.start)
        sgd(
            *optimized,
            ema_target.row[followed],
            _sliced(ema_target.bf16_copy, followed),
            ema_target.share,
        )


class Adam(Optimizer):
    """Adam; `decoupled` makes it AdamW. The step number is a tensor, like the learning rate."""

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
            self.row.mul_(1 - self.lr * self.decay)
        else:
            _add_decay(grad, self.row, self.decay)
        beta1, beta2 = self.betas
        self.steps.add_(1)
        self.first.lerp_(grad, 1 - beta1)
        self.second.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        correction1 = 1 - beta1**self.steps
        correction2 = 1 - beta2**self.steps
        denominator = (self.second / correction2).sqrt_().add_(self.eps)
        self.row.sub_(self.first.div(denominator).mul_(self.lr / correction1))


def _sliced(row: Tensor | None, span: slice) -> Tensor | None:
    if row is None:
        return None
    return row[span]


def _add_decay(grad: Tensor, row: Tensor, decay: float | Tensor) -> None:
    if isinstance(decay, Tensor):
        grad.addcmul_(row, decay)
    elif decay:
        grad.add_(row, alpha=decay)
