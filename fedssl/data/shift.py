"""Input shift: equal shares drawn at random, but each client's images look otherwise, as from another camera.

Only what clients train on is shifted. Test images, and the labelled training images that probes learn from, stay as
they are.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import final

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fedssl.data.images import Dataset, Images
from fedssl.data.partition import PARTITIONS, Iid, Partition

_BLOCK = 1024  # images shifted at a time


class Shifted(Partition, ABC):
    """Images are dealt as with `iid`, then shifted; the shifted ones lie in memory, whatever held the others."""

    @final
    def split(self, data: Dataset, clients: int, generator: Generator) -> dict[str, Tensor]:
        return Iid().split(data, clients, generator)

    @final
    def shift(self, data: Dataset, parts: Mapping[str, Tensor]) -> Dataset:
        held = data.train.held
        pixels = torch.empty((len(held), *held.image), dtype=torch.uint8)
        for k, index in enumerate(parts.values()):
            for some in index.split(_BLOCK):
                seen = self.seen_by(k, len(parts), held[some].float())
                pixels[some] = seen.round().clamp(0, 255).to(torch.uint8)
        return data._replace(train=Images(pixels, data.train.label_loader, data.train.classes))

    @abstractmethod
    def seen_by(self, client: int, clients: int, images: Tensor) -> Tensor:
        """Images (n, C, H, W) in 0 … 255 as client number `client` has them, float32."""


@final
@PARTITIONS.register("rotation")
class Rotation(Shifted):
    """Equal shares drawn at random; client k of K sees its images rotated by 2πk/K, anticlockwise about the centre.

    Bilinear; what comes in from outside is black. Test images stay upright (Dec-SSL's input shift).
    """

    def seen_by(self, client: int, clients: int, images: Tensor) -> Tensor:
        angle = 2 * math.pi * client / clients
        return rotated(images, angle) if client else images


def rotated(images: Tensor, angle: float) -> Tensor:
    """Images (n, C, H, W) turned anticlockwise about their centre by an angle in radians; black from outside."""
    height, width = images.shape[-2:]
    cos, sin = math.cos(angle), math.sin(angle)
    # Where each pixel comes from, in units of half the width and half the height.
    origin = images.new_tensor([[cos, -sin * height / width, 0], [sin * width / height, cos, 0]])
    grid = F.affine_grid(origin.expand(len(images), 2, 3), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


@final
@PARTITIONS.register("style")
class Style(Shifted):
    """Equal shares drawn at random; clients see theirs in five styles in turn, client k in style k modulo 5.

    Plain: as they are. Dark: x² / 255. Faded: half the contrast about mid-grey, and blurred (1 2 1 in both
    directions). Negative: 255 - x. Posterised: four levels, 0, 85, 170, 255. Test images stay plain. Dec-SSL has
    learned stylisation in their place.
    """

    def seen_by(self, client: int, clients: int, images: Tensor) -> Tensor:
        return STYLES[client % len(STYLES)](images)


def plain(images: Tensor) -> Tensor:
    return images


def dark(images: Tensor) -> Tensor:
    return images.square() / 255


def faded(images: Tensor) -> Tensor:
    """Borders are blurred as if the outermost pixels went on."""
    x = F.pad(images, (1, 1, 1, 1), mode="replicate")
    x = (x[..., :-2, :] + 2 * x[..., 1:-1, :] + x[..., 2:, :]) / 4
    x = (x[..., :-2] + 2 * x[..., 1:-1] + x[..., 2:]) / 4
    return 127.5 + (x - 127.5) / 2


def negative(images: Tensor) -> Tensor:
    return 255 - images


def posterised(images: Tensor) -> Tensor:
    return (images / 64).floor() * 85


STYLES = (plain, dark, faded, negative, posterised)
