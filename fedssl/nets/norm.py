"""Batch normalisation whose statistics can be taken per group of images: several views in one pass."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class _Grouped(_BatchNorm):
    """In training, each group of n/groups consecutive images is normalised as if it had passed alone, one
    after the other; running statistics move in place, once per group. In evaluation nothing differs.

    `num_batches_tracked` is not touched: with a constant momentum nothing computes with it, and the training
    step adds to all counters at once (they lie in one row), where sixty layers would launch sixty tiny
    kernels.
    """

    groups: int = 1
    momentum: float  # never None: a cumulative average would need the counter

    def forward(self, images: Tensor) -> Tensor:
        self._check_input_dim(images)  # type: ignore[no-untyped-call]
        if not self.training or self.groups == 1:
            return self._normalise(images)
        if len(images) % self.groups:
            raise ValueError(f"{len(images)} images cannot be cut into {self.groups} groups of one size")
        return torch.cat([self._normalise(group) for group in images.chunk(self.groups)])

    def _normalise(self, images: Tensor) -> Tensor:
        mean, var = self.running_mean, self.running_var
        return F.batch_norm(images, mean, var, self.weight, self.bias, self.training, self.momentum, self.eps)


class BatchNorm1d(_Grouped, nn.BatchNorm1d):
    """Rows (n, d)."""


class BatchNorm2d(_Grouped, nn.BatchNorm2d):
    """Images (n, C, h, w)."""
