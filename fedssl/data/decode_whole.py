"""Convert whole images to uint8 arrays of their own size, by rules 1, 2, 4 and 5 of decode.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from fedssl.data.decode import (
    Array,
    Unreadable,
    apply_orientation,
    converted_channels,
    converter,
    damage_as_unreadable,
    load_pixels,
    open_image,
    open_stream,
    pillow_mode,
    strips,
)


def decode_whole(path: Path, size: tuple[int, int], channels: int = 3) -> Array:
    """Return all of an image file as uint8 (channels, height, width), given its (width, height).

    Annotations refer to the image as their author's viewer showed it. So the image is used as
    stored if that has the annotated size, otherwise rotated by its EXIF orientation. Raise
    Unreadable if neither has that size.
    """
    with open_stream(path) as stream:
        image = open_image(stream)
        stored_size = image.size
        with damage_as_unreadable():
            image = load_pixels(image)
            if stored_size != size:
                image = apply_orientation(image)
            if image.size != size:
                raise Unreadable(
                    f"has {stored_size[0]} × {stored_size[1]} pixels, "
                    f"not {size[0]} × {size[1]} as annotated"
                )
            return to_array(image, channels)


def to_array(image: Image.Image, channels: int | None = None) -> Array:
    """Return an image of any mode as uint8 (C, H, W), by rules 4 and 5.

    Without `channels`, C is 1 for a grey image and 3 for any other.
    """
    box = (0, 0, *image.size)
    convert = converter(image, box)
    if channels is None:
        channels = converted_channels(image, convert)
    array = np.empty((channels, image.height, image.width), np.uint8)
    top = 0
    for strip in strips(image, box):
        pixels = np.asarray(convert(strip).convert(pillow_mode(channels)))
        rows = array[:, top : top + strip.height]
        rows[:] = pixels if channels == 1 else pixels.transpose(2, 0, 1)
        top += strip.height
    return array
