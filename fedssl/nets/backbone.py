"""What a backbone is, and the registry that finds one by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, get_args

from torch import Tensor, nn

from fedssl.errors import ConfigError
from fedssl.settings import Registry, suggest

Stem = Literal["cifar", "imagenet"]


class Backbone(nn.Module, ABC):
    """Images (n, channels, h, w) to features (n, dim).

    `stem` says how images are met: "cifar" keeps their resolution, "imagenet" quarters it. A backbone that
    knows one way only takes either word.
    """

    dim: int

    def __init__(self, channels: int = 3, stem: Stem = "cifar") -> None:
        super().__init__()

    @property
    def channels(self) -> int:
        """Of the images it reads, as its first convolution has them."""
        return next(module.in_channels for module in self.modules() if isinstance(module, nn.Conv2d))

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor: ...


BACKBONES: Registry[Backbone] = Registry("backbone", "fedssl.backbones")


def build(name: str, channels: int = 3, stem: str = "cifar") -> Backbone:
    """A backbone by name, its weights drawn from torch's default generator."""
    stems = get_args(Stem)
    if stem not in stems:
        raise ConfigError(f'unknown stem "{stem}"{suggest(stem, stems) or "; known: " + ", ".join(stems)}')
    if channels < 1:
        raise ConfigError(f"a backbone reads images of one channel or more (got {channels})")
    return BACKBONES[name](channels, stem)  # type: ignore[arg-type]  # known to be a Stem
