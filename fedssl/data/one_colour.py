"""Warn if many images have a single colour, such as black drawings on a transparent background."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedssl.data.image_pool import PixelRows
from fedssl.data.small_images import sample_headers

MIN_SHARE = 0.01  # of the images
MIN_IMAGES = 3
_COARSE = 4  # pixels a side that are compared first: nearly all images differ there
_BLOCK = 1024  # images compared at a time


def one_colour_images(pixels: PixelRows) -> Tensor:
    """Return the positions of the images whose pixels are all equal."""
    step = max(1, min(pixels.image_shape[1:]) // _COARSE)
    coarse = PixelRows(pixels.pool[:, :, ::step, ::step], pixels.rows)
    found = []
    start = 0
    for block in coarse.chunks(_BLOCK):
        positions = start + _are_one_colour(block).nonzero().flatten()
        for part in positions.split(_BLOCK // 8):  # these are copied whole
            found.append(part[_are_one_colour(pixels[part])])
        start += len(block)
    return torch.cat(found)


def _are_one_colour(images: Tensor) -> Tensor:
    """Return for each image (n, C, H, W) if every channel has one value."""
    values = images.flatten(2)
    return (values == values[:, :, :1]).flatten(1).all(1)


def one_colour_warning(
    folder: Path, names: Sequence[str], pixels: PixelRows, background: str
) -> str | None:
    """Return a warning if many decoded images have a single colour, or None.

    `names` are the files of the images, relative to `folder`.
    """
    positions = one_colour_images(pixels).tolist()
    if len(positions) < max(MIN_IMAGES, MIN_SHARE * len(names)):
        return None
    count = f"{len(positions):,} of {len(names):,} images have a single colour after decoding"
    headers = sample_headers(folder, [names[position] for position in positions])
    transparent = [header for header in headers.values() if header and header.transparent]
    if 2 * len(transparent) < len(headers):
        return f"{count}: look at them, and remove those that show nothing"
    other = "black" if background == "white" else "white"
    return (
        f"{count} (transparent pixels become {background}): see `fedssl views`, and set "
        f'data.background = "{other}"'
    )
