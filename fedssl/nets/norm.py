"""Batch normalisation whose statistics can be taken per group of images: several views in one pass."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class _Grouped(_BatchNorm):
    """In training, each group of n/groups consecutive images is normalised as if it had passed alone, one
    after the other; running statistics move in place, once per group. In evaluation nothing differs.

    What usually follows belongs to it: `+ residual`, then with `relu` a ReLU. `fused` does all of that, in training, in
    two kernels of fedssl.kernels.norm; what is here is their plain twin.

    `num_batches_tracked` is not touched: with a constant momentum nothing computes with it, and the training
    step adds to all counters at once (they lie in one row), where sixty layers would launch sixty tiny
    kernels.
    """

    groups: int = 1
    fused: bool = False
    momentum: float  # never None: a cumulative average would need the counter

    def __init__(self, features: int, relu: bool = False) -> None:
        super().__init__(features)
        self.relu = relu

    def forward(self, images: Tensor, residual: Tensor | None = None) -> Tensor:
        return self.twice(images, residual)[0]

    def twice(self, images: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The result for two readers, such as a block's convolution and its shortcut: fused, the sum of their gradients
        costs no pass of its own."""
        self._check_input_dim(images)  # type: ignore[no-untyped-call]
        if self.training and len(images) % self.groups:
            raise ValueError(f"{len(images)} images cannot be cut into {self.groups} groups of one size")
        if self.training and self.fused:
            return self._fused(images, residual)
        if not self.training or self.groups == 1:
            out = self._normalise(images)
        else:
            out = torch.cat([self._normalise(group) for group in images.chunk(self.groups)])
        out = out if residual is None else out + residual
        out = F.relu(out, inplace=True) if self.relu else out
        return out, out

    def _normalise(self, images: Tensor) -> Tensor:
        own = self.running_mean, self.running_var, self.weight, self.bias
        mean, var, weight, bias = (_aligned(tensor) if images.is_cuda else tensor for tensor in own)
        out = F.batch_norm(images, mean, var, weight, bias, self.training, self.momentum, self.eps)
        if self.training:
            for statistic, moved in ((self.running_mean, mean), (self.running_var, var)):
                if statistic is not moved and statistic is not None and moved is not None:
                    statistic.copy_(moved)
        return out

    def _fused(self, images: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        from fedssl.kernels.norm import normalise  # Triton is there only where CUDA is

        assert self.running_mean is not None
        assert self.running_var is not None
        return normalise(
            images, residual, self.weight, self.bias, self.running_mean, self.running_var,
            self.groups, self.momentum, self.eps, self.relu,
        )  # fmt: skip


def _aligned(tensor: Tensor | None) -> Tensor | None:
    """A copy, if it does not begin at 16 bytes: cuDNN reads four numbers at a time, but in a model's row tensors begin
    wherever the one before them ends."""
    return tensor if tensor is None or tensor.data_ptr() % 16 == 0 else tensor.clone()


class BatchNorm1d(_Grouped, nn.BatchNorm1d):
    """Rows (n, d)."""


class BatchNorm2d(_Grouped, nn.BatchNorm2d):
    """Images (n, C, h, w)."""
