"""Views in the style of public code: one PIL image at a time, in the training process.

Uses torchvision's transforms if they can be imported. Otherwise, the same operations are
implemented with Pillow, on which torchvision's PIL path is based: the same crops, filters, blends
and hue, with random numbers from Python's generator.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import Tensor
from torch.utils.data import Dataset

from fedssl.views import Augment

View: TypeAlias = Callable[[Image.Image], Tensor]
TRIES = 10


def make_view(augment: Augment, size: int, which: str = "auto") -> tuple[View, str]:
    """Return a function from a PIL image to one random view (C, size, size) in 0…1, and its name.

    `which` is auto, torchvision or pillow.
    """
    if augment.blur:
        raise ValueError("the comparison is of views without blur")
    view = None if which == "pillow" else torchvision_view(augment, size)
    if view is not None:
        return view, "torchvision.transforms on PIL images"
    if which == "torchvision":
        raise RuntimeError("torchvision does not import here")
    return PillowView(
        augment, size
    ), "Pillow alone, the operations of torchvision.transforms on PIL images"


def torchvision_view(augment: Augment, size: int) -> View | None:
    """Return torchvision's transforms, or None if torchvision cannot be imported."""
    try:
        import torchvision.transforms as t
    except (ImportError, RuntimeError):
        return None
    steps: list[Any] = [
        t.RandomResizedCrop(size, augment.crop, augment.ratio),
        t.RandomHorizontalFlip(augment.flip),
        t.RandomApply([t.ColorJitter(*augment.jitter)], augment.jitter_p),
        t.RandomGrayscale(augment.gray),
        t.ToTensor(),
    ]
    composed: View = t.Compose(steps)
    return composed


class PillowView:
    """Apply RandomResizedCrop, flip, ColorJitter, grayscale and ToTensor."""

    def __init__(self, augment: Augment, size: int) -> None:
        self.augment, self.size = augment, size

    def __call__(self, image: Image.Image) -> Tensor:
        augment = self.augment
        image = resized_crop(image, draw_crop(augment, image.height, image.width), self.size)
        if random.random() < augment.flip:  # nosec B311 # augmentation, no secret
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if random.random() < augment.jitter_p:  # nosec B311 # augmentation, no secret
            image = self._jitter(image)
        if random.random() < augment.gray:  # nosec B311 # augmentation, no secret
            image = gray(image)
        return to_tensor(image)

    def _jitter(self, image: Image.Image) -> Image.Image:
        brightness, contrast, saturation, hue = self.augment.jitter
        for operation in random.sample(range(4), 4):  # nosec B311 # augmentation, no secret
            if operation == 0:
                image = ImageEnhance.Brightness(image).enhance(_factor(brightness))
            elif operation == 1:
                image = ImageEnhance.Contrast(image).enhance(_factor(contrast))
            elif operation == 2:
                image = ImageEnhance.Color(image).enhance(_factor(saturation))
            else:
                # Augmentation, no secret.
                image = turn_hue(image, random.uniform(-hue, hue))  # nosec B311
        return image


def _factor(strength: float) -> float:
    # Augmentation, no secret.
    return random.uniform(max(0.0, 1 - strength), 1 + strength)  # nosec B311


def draw_crop(augment: Augment, height: int, width: int) -> tuple[int, int, int, int]:
    """Return top, left, height, width: the first of ten tries that fits, or the central square."""
    low, high = (math.log(bound) for bound in augment.ratio)
    for _ in range(TRIES):
        # Augmentation, no secret.
        area = height * width * random.uniform(*augment.crop)  # nosec B311
        ratio = math.exp(random.uniform(low, high))  # nosec B311 # augmentation, no secret
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            # Augmentation, no secret.
            return random.randint(0, height - h), random.randint(0, width - w), h, w  # nosec B311
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


def resized_crop(image: Image.Image, crop: tuple[int, int, int, int], size: int) -> Image.Image:
    top, left, height, width = crop
    part = image.crop((left, top, left + width, top + height))
    return part.resize((size, size), Image.Resampling.BILINEAR)


def turn_hue(image: Image.Image, turns: float) -> Image.Image:
    """Shift the hue of an RGB image by a fraction of the wheel, -0.5 to 0.5, in steps of 1/256."""
    shift = int(turns * 255)
    hue, saturation, value = image.convert("HSV").split()
    hue = hue.point([(level + shift) % 256 for level in range(256)])
    return Image.merge("HSV", (hue, saturation, value)).convert("RGB")


def gray(image: Image.Image) -> Image.Image:
    """Return a grey image with three channels."""
    return image.convert("L").convert("RGB")


def to_tensor(image: Image.Image) -> Tensor:
    """Return an image as a tensor (C, H, W) in 0…1."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div(255)


class Pairs(Dataset[tuple[Tensor, Tensor]]):
    """Two views of each image.

    The pixels, (n, C, H, W) uint8 on the host, are stored as (n, H, W, C) for Pillow.
    """

    def __init__(self, pixels: Tensor, view: View) -> None:
        self.pixels, self.view = pixels.permute(0, 2, 3, 1).contiguous().numpy(), view

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = Image.fromarray(self.pixels[index])
        return self.view(image), self.view(image)
