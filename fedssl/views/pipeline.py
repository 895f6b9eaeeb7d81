"""Compute views from clean images and parameters."""

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
    """Return float32 views (n, C, size, size) of uint8 images (n, C, H, W).

    Views are normalised by mean and std (C,). Row i depends only on image i and parameters i.
    Operations that the settings rule out are not computed, whatever the parameters are. Matrix
    products stay in float32 under autocast.
    """
    if images.dtype != torch.uint8 or images.ndim != 4 or len(images) != len(p.top):
        raise ValueError(
            f"views are made of uint8 images (n, C, H, W), one for each of {len(p.top)} rows of "
            f"parameters; got {images.dtype} {tuple(images.shape)}"
        )
    n, channels, height, width = images.shape
    with torch.autocast(images.device.type, enabled=False):
        rows = crop_matrix(p.top, p.height, size, extent=height).div_(255)
        flip = p.flip if augment.flip else None
        cols = crop_matrix(p.left, p.width, size, extent=width, flip=flip)
        x = sandwich(rows, images.float(), cols).flatten(2)
        x = jitter(x, p, augment)
        if augment.gray and channels == 3:
            x = grayscale(x, p.gray)
        if mean is not None and std is not None:
            # Before the blur, which does not change constants.
            x = x.sub_(mean[:, None]).div_(std[:, None])
        x = x.view(n, channels, size, size)
        if augment.blur:
            # A Gaussian of sigma 0.01 is the identity: exp(-5000) is 0.
            sigma = torch.where(p.blur, p.sigma, 0.01)
            blur = blur_matrix(sigma, augment.kernel(size), size)
            x = sandwich(blur, x, blur)
    return x


def make_views(
    group: ViewGroup,
    images: Tensor,
    uniforms: Tensor,
    mean: Tensor | None = None,
    std: Tensor | None = None,
) -> Tensor:
    """Return views (V, B, C, size, size) of uint8 images (B, C, H, W).

    Uniforms are (V * B, COLUMNS), view by view.
    """
    expected = (group.count * len(images), COLUMNS)
    if uniforms.shape != expected:
        raise ValueError(
            f"{group.count} views of {len(images)} images take "
            f"{expected} uniforms, got {tuple(uniforms.shape)}"
        )
    p = parameters(group.augment, uniforms, height=images.shape[2], width=images.shape[3])
    repeated = images.repeat(group.count, 1, 1, 1)
    views = apply(repeated, p, group.augment, size=group.size, mean=mean, std=std)
    return views.view(group.count, len(images), *views.shape[1:])
