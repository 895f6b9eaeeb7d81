"""Find out if images have light edges, so that their borders should be white."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedssl.data.decode import (
    Array,
    Unreadable,
    apply_orientation,
    damage_as_unreadable,
    fit,
    load_pixels,
    open_image,
    open_stream,
)

SAMPLED = 40  # files that are decoded: some seconds if they are photos of 12 megapixels
_SIZE = 32  # pixels a side at which edges are compared
_MIDDLE = 127.5  # between black and white


def have_light_edges(folder: Path, names: Sequence[str]) -> bool:
    """True if padding would be next to light pixels in more than half of a sample of the files."""
    step = max(1, len(names) // SAMPLED)
    light = []
    with warnings.catch_warnings(action="ignore"):  # of Pillow, about damaged files
        for name in names[::step][:SAMPLED]:
            try:
                light.append(float(np.median(_padded_edges(folder / name))) > _MIDDLE)
            except Unreadable:
                continue
    return 2 * sum(light) > len(light)


def _padded_edges(path: Path) -> tuple[Array, Array]:
    """Return the grey pixels at the two longer edges of an image, in its largest centred square."""
    with open_stream(path) as stream:
        image = open_image(stream)
        with damage_as_unreadable():
            image = apply_orientation(load_pixels(image))
            square = fit(image, _SIZE, channels=1)[0]
    if image.width > image.height:
        return square[0], square[-1]
    return square[:, 0], square[:, -1]
