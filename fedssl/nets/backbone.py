"""The contract of a backbone, and the registry of backbones by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

from torch import Tensor, nn

from fedssl.core.errors import ConfigError
from fedssl.core.settings import Registry

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


class PatchBackbone(Backbone):
    """A vision transformer: it cuts images into patches, and its features are those of tokens."""

    patch: int  # side of a patch, in pixels
    heads: int  # of each attention layer

    def cut(self, height: int, width: int) -> tuple[int, int]:
        """Return the grid (rows, columns) of patches in an image of this size."""
        if height % self.patch or width % self.patch:
            raise ConfigError(
                f"this vision transformer cuts images into patches of {self.patch} x {self.patch} "
                f"pixels, but {height} x {width} is not a multiple of that"
            )
        return int(height) // self.patch, int(width) // self.patch  # traced as tensors for ONNX

    @abstractmethod
    def tokens(self, images: Tensor, keep: Tensor | None = None) -> Tensor:
        """Return the class token and one token per patch, (n, 1 + t, dim).

        If `keep` (n, t) is given, only the patches with these indices enter.
        """


BACKBONES: Registry[Backbone] = Registry("backbone", "fedssl.backbones")
