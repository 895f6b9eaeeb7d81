"""Input shift: equal random shares, but each client's images look different, as by another camera.

Only the images that clients train on are shifted. Test images, and the labelled training images
that probes learn from, stay unchanged.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Generator, Tensor

from fedssl.data.images import Dataset, Images
from fedssl.data.partition import PARTITIONS, Iid, Partition

_BLOCK = 1024  # images shifted at a time


class Shifted(Partition, ABC):
    """Images are dealt as with `iid`, then shifted; the shifted images are kept in memory."""

    added_later: ClassVar = ("share",)

    share: float = Field(1.0, gt=0, le=1)  # of its images that a client keeps; the rest are unused

    @final
    def split(self, data: Dataset, clients: int, generator: Generator) -> dict[str, Tensor]:
        return Iid(share=self.share).split(data, clients, generator)

    @final
    def shift(self, data: Dataset, parts: Mapping[str, Tensor]) -> Dataset:
        held = data.train.pixel_rows
        pixels = torch.empty((len(held), *held.image_shape), dtype=torch.uint8)
        for k, index in enumerate(parts.values()):
            for block in index.split(_BLOCK):
                shifted = self.seen_by(k, len(parts), held[block].float())
                pixels[block] = shifted.round().clamp(0, 255).to(torch.uint8)
        return data._replace(train=Images(pixels, data.train.label_loader, data.train.classes))

    @abstractmethod
    def seen_by(self, client: int, clients: int, images: Tensor) -> Tensor:
        """Return images (n, C, H, W) in 0 … 255 as client number `client` sees them, float32."""


@final
@PARTITIONS.register("rotation")
class Rotation(Shifted):
    """Equal shares drawn at random; client k of K sees its images rotated anticlockwise by 2πk/K.

    Bilinear, about the centre; pixels from outside are black. Test images stay upright (Dec-SSL's
    input shift).
    """

    def seen_by(self, client: int, clients: int, images: Tensor) -> Tensor:
        if client == 0:
            return images
        return rotate(images, 2 * math.pi * client / clients)


def rotate(images: Tensor, angle: float) -> Tensor:
    """Rotate images (n, C, H, W) anticlockwise about their centre by an angle in radians.

    Pixels from outside are black.
    """
    height, width = images.shape[-2:]
    cos = math.cos(angle)
    sin = math.sin(angle)
    # The source of each pixel, in units of half the width and half the height.
    source = images.new_tensor([[cos, -sin * height / width, 0], [sin * width / height, cos, 0]])
    grid = F.affine_grid(source.expand(len(images), 2, 3), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


@final
@PARTITIONS.register("style")
class Style(Shifted):
    """Equal shares drawn at random; client k sees its images in style k modulo 5.

    Plain: unchanged. Dark: x² / 255. Faded: half the contrast about mid-grey, and blurred (1 2 1 in
    both directions). Negative: 255 - x. Posterised: four levels, 0, 85, 170, 255. Test images stay
    plain. Dec-SSL uses learned stylisation instead.
    """

    def seen_by(self, client: int, clients: int, images: Tensor) -> Tensor:
        return STYLES[client % len(STYLES)](images)


def plain(images: Tensor) -> Tensor:
    """Return the images unchanged."""
    return images


def dark(images: Tensor) -> Tensor:
    """Return x² / 255."""
    return images.square() / 255


def faded(images: Tensor) -> Tensor:
    """Blur, then halve the contrast about mid-grey; border pixels are repeated for the blur."""
    x = F.pad(images, (1, 1, 1, 1), mode="replicate")
    x = (x[..., :-2, :] + 2 * x[..., 1:-1, :] + x[..., 2:, :]) / 4
    x = (x[..., :-2] + 2 * x[..., 1:-1] + x[..., 2:]) / 4
    return 127.5 + (x - 127.5) / 2


def negative(images: Tensor) -> Tensor:
    """Return 255 - x."""
    return 255 - images


def posterised(images: Tensor) -> Tensor:
    """Reduce to four levels: 0, 85, 170, 255."""
    return (images / 64).floor() * 85


STYLES = (plain, dark, faded, negative, posterised)
