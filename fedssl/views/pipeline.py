"""From clean images and parameters to views."""

from __future__ import annotations

import torch
from torch import Tensor

from fedssl.views.augment import Augment, ViewGroup
from fedssl.views.colour import grayscale, jitter
from fedssl.views.draws import COLUMNS, Parameters, parameters
from fedssl.views.resample import blur_matrix, crop_matrix, sandwich


def apply(
    images: Tensor,
    p: Parameters,
    augment: Augment,
    size: int,
    mean: Tensor | None = None,
    std: Tensor | None = None,
) -> Tensor:
    """uint8 images (n, C, H, W) to float32 views (n, C, size, size), normalised by mean and std (C,).

    Row i depends on image i and parameters i alone. What the settings rule out is not computed, whatever the
    parameters say. Products of matrices stay in float32 under autocast.
    """
    if images.dtype != torch.uint8 or images.ndim != 4 or len(images) != len(p.top):
        raise ValueError(
            f"views are made of uint8 images (n, C, H, W), one for each of {len(p.top)} rows of parameters; "
            f"got {images.dtype} {tuple(images.shape)}"
        )
    n, channels, height, width = images.shape
    with torch.autocast(images.device.type, enabled=False):
        rows = crop_matrix(p.top, p.height, size, height).div_(255)
        cols = crop_matrix(p.left, p.width, size, width, p.flip if augment.flip else None)
        x = sandwich(rows, images.float(), cols).flatten(2)
        x = jitter(x, p, augment)
        if augment.gray and channels == 3:
            x = grayscale(x, p.gray)
        if mean is not None and std is not None:  # before the blur, which leaves constants as they are
            x = x.sub_(mean[:, None]).div_(std[:, None])
        x = x.view(n, channels, size, size)
        if augment.blur:
            # So narrow a Gaussian is the identity: exp(-5000) is 0.
            blur = blur_matrix(torch.where(p.blur, p.sigma, 0.01), augment.kernel(size), size)
            x = sandwich(blur, x, blur)
    return x


def make_views(
    group: ViewGroup, images: Tensor, uniforms: Tensor, mean: Tensor | None = None, std: Tensor | None = None
) -> Tensor:
    """Views (V, B, C, size, size) of uint8 images (B, C, H, W); uniforms (V * B, COLUMNS), view by view."""
    if uniforms.shape != (group.count * len(images), COLUMNS):
        raise ValueError(
            f"{group.count} views of {len(images)} images take "
            f"{(group.count * len(images), COLUMNS)} uniforms, got {tuple(uniforms.shape)}"
        )
    p = parameters(group.augment, uniforms, *images.shape[2:])
    views = apply(images.repeat(group.count, 1, 1, 1), p, group.augment, group.size, mean, std)
    return views.view(group.count, len(images), *views.shape[1:])
