"""Uniform numbers in, the parameters of every operation out: what torchvision's transforms would draw."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fedssl.views.augment import Augment

TRIES = 10  # RandomResizedCrop gives up after as many
# One image's uniforms: areas, ratios, position, flip, jitter, its order, its factors, gray, blur, sigma.
# The same for all settings, so that switching one operation off leaves the draws of the others alone.
WIDTHS = (TRIES, TRIES, 2, 1, 1, 4, 4, 1, 1, 1)
COLUMNS = sum(WIDTHS)  # uniforms that one view of one image takes


class Parameters(NamedTuple):
    """What is done to n images. Columns of four are brightness, contrast, saturation, hue."""

    top: Tensor  # (n,) int64, the crop in pixels of the image
    left: Tensor
    height: Tensor
    width: Tensor
    flip: Tensor  # (n,) bool
    jitter: Tensor  # (n,) bool
    turn: Tensor  # (n, 4) int64: when each operation has its turn; the inverse of ColorJitter's fn_idx
    factors: Tensor  # (n, 4) float32
    gray: Tensor  # (n,) bool
    blur: Tensor  # (n,) bool
    sigma: Tensor  # (n,) float32


def draw(n: int, generator: torch.Generator, device: torch.device | str) -> Tensor:
    """Uniforms (n, COLUMNS) in [0, 1), drawn where the generator lives: the only randomness of n views."""
    uniforms = torch.rand(n, COLUMNS, generator=generator, device=generator.device)
    return uniforms.to(device, non_blocking=True)


def parameters(augment: Augment, uniforms: Tensor, height: int, width: int) -> Parameters:
    """Uniforms (n, COLUMNS) to the parameters of n views of images of this height and width."""
    area, ratio, position, *rest = torch.split(uniforms, list(WIDTHS), dim=1)
    flip, jitter, order, factors, gray, blur, sigma = rest
    return Parameters(
        *_crop(augment, area, ratio, position, height, width),
        flip=flip[:, 0] < augment.flip,
        jitter=jitter[:, 0] < augment.jitter_p,
        turn=order.argsort(dim=1).argsort(dim=1),  # not by comparing: equal uniforms must still take turns
        factors=torch.stack([_factor(augment, k, factors[:, k]) for k in range(4)], dim=1),
        gray=gray[:, 0] < augment.gray,
        blur=blur[:, 0] < augment.blur,
        sigma=_between(augment.blur_sigma, sigma[:, 0]),
    )


def _crop(
    augment: Augment, area: Tensor, ratio: Tensor, position: Tensor, height: int, width: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The first of ten tries (n, 10) that fits into the image, else the largest central crop; (n,) each."""
    area = _between(augment.crop, area) * (height * width)
    ratio = _between((math.log(augment.ratio[0]), math.log(augment.ratio[1])), ratio).exp()
    w, h = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    first = fits.to(torch.uint8).argmax(dim=1, keepdim=True)
    found = fits.any(dim=1)
    fallback_h, fallback_w = _fallback(augment, height, width)
    h = torch.where(found, h.gather(1, first)[:, 0], fallback_h)
    w = torch.where(found, w.gather(1, first)[:, 0], fallback_w)
    top = torch.where(found, _index(position[:, 0], height - h), (height - fallback_h) // 2)
    left = torch.where(found, _index(position[:, 1], width - w), (width - fallback_w) // 2)
    return top.long(), left.long(), h.long(), w.long()


def _fallback(augment: Augment, height: int, width: int) -> tuple[int, int]:
    """The largest height and width of a crop whose ratio is as near the image's own as settings allow."""
    low, high = augment.ratio
    if width / height < low:
        return round(width / low), width
    if width / height > high:
        return height, round(height * high)
    return height, width


def _index(uniform: Tensor, last: Tensor) -> Tensor:
    """A whole number from 0 to `last`, both included (rounding may lift u * (last + 1) to last + 1)."""
    return (uniform * (last + 1)).floor().minimum(last)


def _between(bounds: tuple[float, float], uniform: Tensor) -> Tensor:
    return uniform * (bounds[1] - bounds[0]) + bounds[0]


def _factor(augment: Augment, kind: int, uniform: Tensor) -> Tensor:
    strength = augment.jitter[kind]
    return _between((-strength, strength) if kind == 3 else (max(0.0, 1 - strength), 1 + strength), uniform)
