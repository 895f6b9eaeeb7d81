"""Views of images as a differentiable function of the pixels.

The same operations as in `views.make_views`, which takes uint8 images only: an attack optimises
pixels through them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedssl.views import ViewGroup, parameters
from fedssl.views.colour import grayscale, jitter
from fedssl.views.resample import blur_matrix, crop_matrix, sandwich


def make_float_views(
    group: ViewGroup,
    images: Tensor,
    uniforms: Tensor,
    mean: Tensor | None = None,
    std: Tensor | None = None,
) -> Tensor:
    """Return views (V, B, C, size, size) of images (B, C, H, W) in 0…1; see `make_views`."""
    count = group.count
    size = group.size
    augment = group.augment
    channels, height, width = images.shape[1:]
    p = parameters(augment, uniforms, height=height, width=width)
    rows = crop_matrix(p.top, p.height, size, extent=height)
    flip = p.flip if augment.flip else None
    cols = crop_matrix(p.left, p.width, size, extent=width, flip=flip)
    x = sandwich(rows, images.repeat(count, 1, 1, 1), cols).flatten(2)
    x = jitter(x, p, augment)
    if augment.gray and channels == 3:
        x = grayscale(x, p.gray)
    if mean is not None and std is not None:
        x = (x - mean[:, None]) / std[:, None]
    x = x.view(len(p.top), channels, size, size)
    if augment.blur:
        sigma = torch.where(p.blur, p.sigma, 0.01)
        blur = blur_matrix(sigma, augment.kernel(size), size)
        x = sandwich(blur, x, blur)
    return x.view(count, len(images), *x.shape[1:])
