"""Crop, resize, flip and blur as products with one matrix per image and axis."""

from __future__ import annotations

import torch
from torch import Tensor


def sandwich(rows: Tensor, images: Tensor, cols: Tensor) -> Tensor:
    """Return rows · image · colsᵀ for every channel.

    Shapes: (n, s, H), (n, C, H, W), (n, t, W) to (n, C, s, t).
    """
    n, channels, height, width = images.shape
    half = torch.bmm(images.reshape(n, channels * height, width), cols.mT)
    return torch.matmul(rows[:, None], half.view(n, channels, height, -1))


def crop_matrix(
    start: Tensor, length: Tensor, size: int, extent: int, flip: Tensor | None = None
) -> Tensor:
    """Return the antialiased bilinear filter from a crop of `extent` pixels to `size`.

    The filter is the triangle of `interpolate(crop, mode="bilinear", antialias=True)`: as wide as
    one output pixel or one input pixel, whichever is wider, cut off and normalised at the borders
    of the crop. Start, length and flip are (n,), in pixels; flip mirrors the output. The result is
    (n, size, extent).
    """
    scale = (length / size)[:, None]
    out = torch.arange(size, device=start.device).expand(len(start), size)
    if flip is not None:
        out = out + flip[:, None] * (size - 1 - 2 * out)
    centre = (out + 0.5) * scale
    inside = torch.arange(extent, device=start.device) - start[:, None]
    # Pixels outside the crop are moved so far away that their weight is zero.
    offset = ((inside < 0) | (inside >= length[:, None])) * (4.0 * extent)
    distance = ((inside + 0.5 + offset)[:, None, :] - centre[:, :, None]).abs_()
    weight = distance.div_(-scale.clamp_min(1.0)[:, :, None]).add_(1.0).relu_()
    return weight.div_(weight.sum(dim=2, keepdim=True))


def blur_matrix(sigma: Tensor, kernel: int, size: int) -> Tensor:
    """Return a Gaussian of `kernel` taps along one axis with reflected borders.

    Pixel i sees pixel j directly and in the mirrors at 0 and size - 1; reflection keeps the
    kernel's mass, so each row is normalised by its own sum. A sigma near zero gives the identity.
    Shapes: sigma (n,) to (n, size, size).
    """
    i = torch.arange(size, device=sigma.device)[:, None]
    j = i.T
    left = torch.where(j > 0, i + j, -1)
    right = torch.where(j < size - 1, 2 * (size - 1) - i - j, -1)
    direct = (i - j).abs()
    weight = sigma.new_zeros(len(sigma), size, size)
    for distance in range(kernel // 2 + 1):
        tap = (-0.5 * (distance / sigma) ** 2).exp()
        paths = (direct == distance).to(tap.dtype) + (left == distance) + (right == distance)
        weight.addcmul_(tap[:, None, None], paths)
    return weight.div_(weight.sum(dim=2, keepdim=True))
