"""Group normalisation in place of BatchNorm: no running statistics, no mixing of images.

Wu & He, "Group normalization", ECCV 2018. Maps are normalised in groups of 16 channels, one of the
sizes in the paper's Table 3; rows of a head are one group. Names and shapes of weights and biases
are those of BatchNorm.
"""

from __future__ import annotations

import math
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from fedssl.nets.norm import BatchNorm1d, BatchNorm2d

Norm = Literal["batch", "group"]
CHANNELS_PER_GROUP = 16


class GroupNorm(nn.GroupNorm):
    """GroupNorm with the interface of fedssl.nets.BatchNorm2d: `+ residual`, then a ReLU."""

    def __init__(self, groups: int, features: int, relu: bool = False) -> None:
        super().__init__(groups, features)
        self.relu = relu

    def forward(self, images: Tensor, residual: Tensor | None = None) -> Tensor:
        """Return the normalised images (n, C, …), plus the residual, after the ReLU."""
        out = super().forward(images)
        if residual is not None:
            out = out + residual
        if self.relu:
            out = F.relu(out)
        return out

    def twice(self, images: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the result twice, for two consumers such as a block's convolution and shortcut."""
        out = self.forward(images, residual)
        return out, out


class ActivatedGroupNorm(GroupNorm):
    """GroupNorm with another activation than a ReLU."""

    def __init__(self, groups: int, features: int, activation: nn.Module) -> None:
        super().__init__(groups, features)
        self.act = activation

    def forward(self, images: Tensor, residual: Tensor | None = None) -> Tensor:
        """Return the activation of the normalised images (n, C, …)."""
        out: Tensor = self.act(super().forward(images, residual))
        return out


def group_count(channels: int) -> int:
    """Return the number of groups of a map with this many channels, as torch.nn.GroupNorm has it.

    Groups have 16 channels, or the largest divisor of 16 that divides the number of channels.
    """
    return channels // math.gcd(channels, CHANNELS_PER_GROUP)


def use_norm(module: nn.Module, norm: Norm) -> None:
    """Replace, in place, every BatchNorm inside a module if `norm` is "group".

    The weights of other layers are untouched, and new layers draw no random numbers.
    """
    if norm == "batch":
        return
    for name, child in module.named_children():
        if isinstance(child, BatchNorm1d | BatchNorm2d):
            setattr(module, name, _replacement(child))
        else:
            use_norm(child, norm)


def _replacement(batch_norm: BatchNorm1d | BatchNorm2d) -> GroupNorm:
    """Return the GroupNorm for a BatchNorm; that of a target has no gradients either."""
    features = batch_norm.num_features
    groups = 1
    if isinstance(batch_norm, BatchNorm2d):
        groups = group_count(features)
    norm = GroupNorm(groups, features, batch_norm.relu)
    activation = getattr(batch_norm, "act", None)  # of a layer converted from timm
    if activation is not None:
        norm = ActivatedGroupNorm(groups, features, activation)
    weight: Tensor | None = batch_norm.weight
    if weight is None:
        return norm
    return norm.requires_grad_(weight.requires_grad)
