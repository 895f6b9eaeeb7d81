"""The contract of a backbone, and the registry of backbones by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, get_args

from torch import Tensor, nn

from fedssl.core.errors import ConfigError
from fedssl.core.settings import Registry
from fedssl.core.suggestions import suggest
from fedssl.nets.group_norm import Norm, use_norm

Stem = Literal["cifar", "imagenet"]


class Backbone(nn.Module, ABC):
    """Maps images (n, channels, h, w) to features (n, dim).

    `stem` selects the first layers: "cifar" keeps the resolution of images, "imagenet" quarters it.
    A backbone with only one stem accepts either value.
    """

    dim: int

    def __init__(self, channels: int = 3, stem: Stem = "cifar") -> None:
        super().__init__()

    @property
    def channels(self) -> int:
        """Return the number of channels of its images, from its first convolution."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                return module.in_channels
        raise TypeError(
            f"the number of channels of {type(self).__name__} is unknown, because it has no "
            "convolution: override its property `channels`"
        )

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """Return the features (n, dim) of images (n, channels, h, w)."""


BACKBONES: Registry[Backbone] = Registry("backbone", "fedssl.backbones")


def build(name: str, channels: int = 3, stem: str = "cifar", norm: Norm = "batch") -> Backbone:
    """Return a backbone by name, its weights drawn from torch's default generator.

    `norm = "group"` replaces its BatchNorm layers, in both training and evaluation.
    """
    stems = get_args(Stem)
    if stem not in stems:
        hint = suggest(stem, stems) or f"; known: {', '.join(stems)}"
        raise ConfigError(f'unknown stem "{stem}"{hint}')
    if channels < 1:
        raise ConfigError(f"images must have at least one channel (got {channels})")
    backbone = BACKBONES[name](channels, stem)  # type: ignore[arg-type]  # checked above
    use_norm(backbone, norm)
    return backbone
