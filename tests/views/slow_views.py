"""Slow, obvious formulas of views, one image at a time, and the tests' images and settings."""

from __future__ import annotations

import colorsys
import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedssl.views import (
    Augment,
    Parameters,
    apply,
    draw,
    parameters,
)

PLAIN = Augment(flip=0, jitter=(0, 0, 0, 0), jitter_p=0, gray=0)
FULL = Augment(jitter=(0.8, 0.8, 0.8, 0.5), blur=0.5, gray=0.3)
TOLERANCE = {"rtol": 0.0, "atol": 1e-5}
# Height, width and size of the views.
CROPS = [
    (32, 32, 32),
    (28, 28, 28),
    (64, 64, 32),
    (96, 96, 32),
    (40, 56, 24),
    (20, 12, 32),
    (9, 9, 1),
]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_images(n: int, channels: int, height: int, width: int, seed: int = 0) -> Tensor:
    return torch.randint(
        0, 256, (n, channels, height, width), generator=seeded(seed), dtype=torch.uint8
    )


def drawn(augment: Augment, n: int, height: int, width: int, seed: int = 1) -> Parameters:
    return parameters(augment, draw(n, seeded(seed), "cpu"), height, width)


def whole(n: int, side: int, **fields: Any) -> Parameters:
    """Return parameters of views that equal the square images, except for the given fields."""
    no = torch.zeros(n, dtype=torch.bool)
    zero = torch.zeros(n, dtype=torch.int64)
    full = zero + side
    turn = torch.arange(4).repeat(n, 1)
    factors = torch.tensor([[1.0, 1.0, 1.0, 0.0]] * n)
    p = Parameters(zero, zero, full, full, no, no, turn, factors, no, no, torch.ones(n))
    return p._replace(**fields)


def row(p: Parameters, i: int) -> Parameters:
    return Parameters(*(field[i : i + 1] for field in p))


# Slow formulas. Images are float (C, H, W) in 0..1.


def slow_crop(x: Tensor, p: Parameters, i: int, size: int) -> Tensor:
    top, left, height, width = (int(field[i]) for field in p[:4])
    crop = x[None, :, top : top + height, left : left + width]
    out = F.interpolate(crop, (size, size), mode="bilinear", antialias=True, align_corners=False)[0]
    return out.flip(-1) if p.flip[i] else out


def slow_gray(x: Tensor) -> Tensor:
    return 0.2989 * x[0] + 0.587 * x[1] + 0.114 * x[2]


def slow_hue(x: Tensor, turns: float) -> Tensor:
    out = torch.empty_like(x)
    for i, j in itertools.product(range(x.shape[1]), range(x.shape[2])):
        h, s, v = colorsys.rgb_to_hsv(*x[:, i, j].tolist())
        out[:, i, j] = torch.tensor(colorsys.hsv_to_rgb((h + turns) % 1.0, s, v))
    return out


def slow_operation(x: Tensor, kind: int, factor: float) -> Tensor:
    rgb = len(x) == 3
    if kind == 0:
        base = torch.zeros_like(x)
    elif kind == 1:
        base = (slow_gray(x) if rgb else x).mean().expand_as(x)
    elif not rgb:
        return x
    elif kind == 2:
        base = slow_gray(x).expand_as(x)
    else:
        return slow_hue(x, factor)
    return (factor * x + (1 - factor) * base).clamp(0, 1)


def slow_blur(x: Tensor, kernel: int, sigma: float) -> Tensor:
    half = kernel // 2
    size = x.shape[-1]
    taps = [math.exp(-0.5 * (d / sigma) ** 2) for d in range(-half, half + 1)]

    def along_last(y: Tensor) -> Tensor:
        out = torch.zeros_like(y)
        for i, d in itertools.product(range(size), range(-half, half + 1)):
            j = abs(i + d)
            j = 2 * (size - 1) - j if j > size - 1 else j
            out[..., i] += y[..., j] * taps[d + half] / sum(taps)
        return out

    return along_last(along_last(x).mT).mT


def slow_view(image: Tensor, p: Parameters, i: int, augment: Augment, size: int) -> Tensor:
    x = slow_crop(image / 255, p, i, size)
    if p.jitter[i]:
        for kind in p.turn[i].argsort().tolist():
            x = slow_operation(x, kind, float(p.factors[i, kind]))
    if p.gray[i] and len(x) == 3:
        x = slow_gray(x).expand_as(x)
    return slow_blur(x, augment.kernel(size), float(p.sigma[i])) if p.blur[i] else x


def jittered(x: Tensor, kind: int, factor: float) -> Tensor:
    """Return views of uint8 images under a single operation of the jitter."""
    n = x.shape[0]
    side = x.shape[2]
    p = whole(n, side, jitter=torch.ones(n, dtype=torch.bool))
    p.factors[:, kind] = factor
    strength = [0.0] * 4
    strength[kind] = 0.5
    return apply(x, p, PLAIN.model_copy(update={"jitter": tuple(strength), "jitter_p": 1.0}), side)
