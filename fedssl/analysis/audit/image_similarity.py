"""How similar two images are: PSNR and SSIM, and the best match among several images.

Images are float in 0…1, (n, C, H, W).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_PSNR = 100.0  # of equal images, whose PSNR is infinite
WINDOW = 7  # pixels a side of SSIM's windows
C1 = 0.01**2  # the constants of SSIM for a range of 1
C2 = 0.03**2
BLOCK = 64  # images compared with all candidates at a time


def psnr(images: Tensor, others: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio (n,) in dB of each pair: −10·log10 of the MSE."""
    error = (images - others).square().flatten(1).mean(1)
    return to_psnr(error)


def to_psnr(error: Tensor) -> Tensor:
    """Return the PSNR of mean squared errors; at most MAX_PSNR."""
    return (-10 * error.clamp_min(1e-30).log10()).clamp_max(MAX_PSNR)


def ssim(images: Tensor, others: Tensor) -> Tensor:
    """Return the structural similarity (n,) of each pair, the mean over windows.

    Wang et al., "Image quality assessment: from error visibility to structural similarity", IEEE
    Transactions on Image Processing 13, 2004, with uniform windows of 7 pixels a side instead of
    Gaussian ones. Smaller images have one window.
    """
    images = images.double()  # variances are small differences
    others = others.double()
    window = min(WINDOW, *images.shape[2:])
    mean = F.avg_pool2d(images, window, 1)
    other_mean = F.avg_pool2d(others, window, 1)
    variance = F.avg_pool2d(images.square(), window, 1) - mean.square()
    other_variance = F.avg_pool2d(others.square(), window, 1) - other_mean.square()
    covariance = F.avg_pool2d(images * others, window, 1) - mean * other_mean
    luminance = (2 * mean * other_mean + C1) / (mean.square() + other_mean.square() + C1)
    structure = (2 * covariance + C2) / (variance + other_variance + C2)
    return (luminance * structure).flatten(1).mean(1)


class Match(NamedTuple):
    """For each of n images, its best match by PSNR among some candidates."""

    candidate: Tensor  # (n,) its number
    psnr: Tensor  # (n,) in dB


def best_match(images: Tensor, candidates: Tensor) -> Match:
    """Return the candidate (m, C, H, W) with the highest PSNR for each image (n, C, H, W)."""
    flat = candidates.flatten(1).double()
    indices = []
    values = []
    for block in images.flatten(1).double().split(BLOCK):
        # Not cdist: its matrix product loses the small distances.
        squares = torch.stack([(flat - row).square().mean(1) for row in block])
        error, index = squares.min(1)
        values.append(to_psnr(error))
        indices.append(index)
    return Match(torch.cat(indices), torch.cat(values).float())
