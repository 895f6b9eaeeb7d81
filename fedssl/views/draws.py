"""Map uniform numbers to the parameters that torchvision's transforms would draw."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fedssl.views.augment import Augment

HUE = 3  # column of the hue; columns of four are brightness, contrast, saturation, hue
TRIES = 10  # RandomResizedCrop tries this many crops
# Uniforms of one image: areas, ratios, position, flip, jitter, jitter's order and factors, gray,
# blur, sigma. They are the same for all settings, so that disabling one operation does not change
# the draws of the others.
WIDTHS = (TRIES, TRIES, 2, 1, 1, 4, 4, 1, 1, 1)
COLUMNS = sum(WIDTHS)  # uniforms needed for one view of one image


class Parameters(NamedTuple):
    """Parameters of n views. Columns of four are brightness, contrast, saturation, hue."""

    top: Tensor  # (n,) int64, the crop in pixels of the image
    left: Tensor
    height: Tensor
    width: Tensor
    flip: Tensor  # (n,) bool
    jitter: Tensor  # (n,) bool
    turn: Tensor  # (n, 4) int64: rank of each operation; the inverse of ColorJitter's fn_idx
    factors: Tensor  # (n, 4) float32
    gray: Tensor  # (n,) bool
    blur: Tensor  # (n,) bool
    sigma: Tensor  # (n,) float32


def draw(n: int, generator: torch.Generator, device: torch.device | str) -> Tensor:
    """Return uniforms (n, COLUMNS) in [0, 1), the only randomness of n views.

    They are drawn on the generator's device and then moved to `device`.
    """
    uniforms = torch.rand(n, COLUMNS, generator=generator, device=generator.device)
    return uniforms.to(device, non_blocking=True)


def parameters(augment: Augment, uniforms: Tensor, height: int, width: int) -> Parameters:
    """Return the parameters of n views of images of this size from uniforms (n, COLUMNS)."""
    area, ratio, position, *rest = torch.split(uniforms, list(WIDTHS), dim=1)
    flip, jitter, order, factors, gray, blur, sigma = rest
    top, left, crop_height, crop_width = _crop(
        augment, area, ratio, position=position, height=height, width=width
    )
    return Parameters(
        top=top,
        left=left,
        height=crop_height,
        width=crop_width,
        flip=flip[:, 0] < augment.flip,
        jitter=jitter[:, 0] < augment.jitter_p,
        # Sorted, not compared: equal uniforms must still get different ranks.
        turn=order.argsort(dim=1).argsort(dim=1),
        factors=torch.stack([_factor(augment, k, factors[:, k]) for k in range(4)], dim=1),
        gray=gray[:, 0] < augment.gray,
        blur=blur[:, 0] < augment.blur,
        sigma=_between(augment.blur_sigma, sigma[:, 0]),
    )


def _crop(
    augment: Augment, area: Tensor, ratio: Tensor, position: Tensor, height: int, width: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return top, left, height and width of the crops, (n,) each.

    A crop is the first of ten tries (n, 10) that fits into the image, else the largest central one.
    """
    area = _between(augment.crop, area) * (height * width)
    log_bounds = (math.log(augment.ratio[0]), math.log(augment.ratio[1]))
    ratio = _between(log_bounds, ratio).exp()
    w = (area * ratio).sqrt().round()
    h = (area / ratio).sqrt().round()
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    first = fits.to(torch.uint8).argmax(dim=1, keepdim=True)
    any_fits = fits.any(dim=1)
    fallback_h, fallback_w = _fallback(augment, height, width)
    h = torch.where(any_fits, h.gather(1, first)[:, 0], fallback_h)
    w = torch.where(any_fits, w.gather(1, first)[:, 0], fallback_w)
    top = torch.where(any_fits, _index(position[:, 0], height - h), (height - fallback_h) // 2)
    left = torch.where(any_fits, _index(position[:, 1], width - w), (width - fallback_w) // 2)
    return top.long(), left.long(), h.long(), w.long()


def _fallback(augment: Augment, height: int, width: int) -> tuple[int, int]:
    """Return the size of the largest crop whose ratio is as near the image's as settings allow."""
    low, high = augment.ratio
    if width / height < low:
        return round(width / low), width
    if width / height > high:
        return height, round(height * high)
    return height, width


def _index(uniform: Tensor, last: Tensor) -> Tensor:
    """Return an integer from 0 to `last`, both included.

    Rounding may lift u * (last + 1) to last + 1, hence the minimum.
    """
    return (uniform * (last + 1)).floor().minimum(last)


def _between(bounds: tuple[float, float], uniform: Tensor) -> Tensor:
    """Scale uniforms to an interval."""
    return uniform * (bounds[1] - bounds[0]) + bounds[0]


def _factor(augment: Augment, kind: int, uniform: Tensor) -> Tensor:
    """Return the factors of one jitter operation: around 0 for the hue, around 1 for the others."""
    strength = augment.jitter[kind]
    if kind == HUE:
        return _between((-strength, strength), uniform)
    return _between((max(0.0, 1 - strength), 1 + strength), uniform)
