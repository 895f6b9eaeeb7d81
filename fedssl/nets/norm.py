"""Batch normalisation with statistics per group of images, for several views in one pass."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class _GroupedBatchNorm(_BatchNorm):
    """BatchNorm that normalises each group of n/groups consecutive images separately in training.

    The result is as if the groups were passed one after the other; running statistics are updated
    in place, once per group. In evaluation it equals torch's BatchNorm.

    The operations that usually follow are included: `+ residual`, then with `relu` a ReLU. `fused`
    computes all of that, in training, in two kernels of fedssl.core.kernels.norm; the code here is
    their plain reference.

    `num_batches_tracked` is not updated: with a constant momentum it has no effect, and the
    training step increments all counters at once (they are adjacent in memory), where sixty layers
    would launch sixty tiny kernels.
    """

    groups: int = 1
    fused: bool = False
    momentum: float  # never None: a cumulative average would need the counter

    def __init__(self, features: int, relu: bool = False) -> None:
        super().__init__(features)
        self.relu = relu

    def forward(self, images: Tensor, residual: Tensor | None = None) -> Tensor:
        """Return the normalised images, plus the residual, after the ReLU."""
        return self.twice(images, residual)[0]

    def twice(self, images: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the result twice, for two consumers such as a block's convolution and shortcut.

        If fused, the sum of their gradients needs no extra pass over memory.
        """
        self._check_input_dim(images)  # type: ignore[no-untyped-call]
        if self.training and len(images) % self.groups:
            raise ValueError(
                f"{len(images)} images cannot be cut into {self.groups} groups of one size"
            )
        if self.training and self.fused:
            return self._fused(images, residual)
        if not self.training or self.groups == 1:
            out = self._normalise(images)
        else:
            out = torch.cat([self._normalise(group) for group in images.chunk(self.groups)])
        if residual is not None:
            out = out + residual
        if self.relu:
            out = F.relu(out, inplace=True)
        return out, out

    def _normalise(self, images: Tensor) -> Tensor:
        """Normalise images and, in training, update the running statistics."""
        mean: Tensor | None = self.running_mean
        var: Tensor | None = self.running_var
        weight: Tensor | None = self.weight
        bias: Tensor | None = self.bias
        if images.is_cuda:
            mean = _aligned(mean)
            var = _aligned(var)
            weight = _aligned(weight)
            bias = _aligned(bias)
        out = F.batch_norm(
            images,
            mean,
            var,
            weight=weight,
            bias=bias,
            training=self.training,
            momentum=self.momentum,
            eps=self.eps,
        )
        if self.training:
            _copy_back(mean, self.running_mean)
            _copy_back(var, self.running_var)
        return out

    def _fused(self, images: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        from fedssl.core.kernels.norm import normalise  # Triton is installed only with CUDA

        assert self.running_mean is not None
        assert self.running_var is not None
        return normalise(
            images, residual, self.weight, self.bias, self.running_mean, self.running_var,
            self.groups, self.momentum, self.eps, self.relu,
        )  # fmt: skip


def _aligned(tensor: Tensor | None) -> Tensor | None:
    """Return the tensor, or a copy if its address is not a multiple of 16 bytes.

    cuDNN reads four numbers at a time, but a model's tensors are packed without padding.
    """
    if tensor is None or tensor.data_ptr() % 16 == 0:
        return tensor
    return tensor.clone()


def _copy_back(updated: Tensor | None, statistic: Tensor | None) -> None:
    """Copy an updated statistic into the buffer if it is a copy made by `_aligned`."""
    if updated is not None and statistic is not None and updated is not statistic:
        statistic.copy_(updated)


class BatchNorm1d(_GroupedBatchNorm, nn.BatchNorm1d):
    """Grouped batch normalisation of rows (n, d)."""


class BatchNorm2d(_GroupedBatchNorm, nn.BatchNorm2d):
    """Grouped batch normalisation of images (n, C, h, w)."""
