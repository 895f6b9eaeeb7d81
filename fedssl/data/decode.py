"""Convert image files to uint8 arrays, by the same rules for every format and mode.

1. Images of more than 50 megapixels are rejected from the header, before any pixel is decoded.
   JPEG 2000 has a limit of 12, since its decoder takes up to 24 bytes a pixel.
2. Of an animation, the first frame is used. EXIF orientation is applied.
3. The largest centred square is kept, so any shape is accepted, even 1 × 10,000. With `pad`, all of
   the image is kept instead, if its longer side has at most 1,000,000 pixels.
4. Transparency is composited over `background`, by default black, the colour of padding. Greyscale,
   palette, CMYK and other modes become RGB by Pillow's conversion; colour profiles are ignored.
5. 16-bit, 32-bit and float images are rescaled so that their smallest value is 0 and their largest
   255, since the range of the type is not the range of the values: a 12-bit camera uses a sixteenth
   of 16 bits. An image of one value becomes black.
6. The longer side is scaled to `size`, bilinearly with antialias, up or down. The shorter side is
   scaled in proportion, to at least one pixel, and padded on both sides to a square of
   `background`.

Large images are converted in strips of rows. Decoding one takes at most four times the memory of
its pixels as Pillow stores them, plus 50 MB (JPEG 2000: 300 MB in all).

Worker processes load this file by its path (see decode_worker.py), so it must not import fedssl.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, ImageOps

# Increment with every change of the rules above: it invalidates cached pixels.
RULES = 1
MAX_PIXELS = 50_000_000
MAX_PIXELS_BY_FORMAT = {"JPEG2000": 12_000_000}
MAX_PADDED_SIDE = 1_000_000  # Pillow's filter takes 16 bytes for each pixel of the side
STRIP_PIXELS = 1_000_000  # converted at a time
# Only raster formats: Pillow would also pass PostScript to an interpreter.
_FORMATS = ("PNG", "JPEG", "MPO", "GIF", "BMP", "DIB", "TIFF", "WEBP", "PPM", "JPEG2000", "AVIF")

Array = npt.NDArray[np.uint8]
Box = tuple[int, int, int, int]  # left, top, right, bottom
Convert = Callable[[Image.Image], Image.Image]


class Unreadable(Exception):  # noqa: N818 - describes a file, not a failure of this program
    """A file that cannot be decoded, with a short reason.

    `lasting` is False if the disk, its permissions or too little memory may be the cause, so that
    another attempt could succeed.
    """

    def __init__(self, reason: str, lasting: bool = True) -> None:
        super().__init__(reason)
        self.lasting = lasting


def decode(
    source: Path | bytes, size: int, channels: int = 3, background: int = 0, pad: bool = False
) -> Array:
    """Return one image file as uint8 (channels, size, size), or raise Unreadable.

    `background` is the grey under transparent pixels and, with `pad`, around the image: 0 to 255.
    Pillow may issue warnings; the caller decides what to do with them.
    """
    with open_stream(source) as stream:
        image = open_image(stream)
        with damage_as_unreadable():
            image = apply_orientation(load_pixels(image))
            return fit(image, size, channels, background, pad)


def read_header(path: Path) -> tuple[int, int, str, bool]:
    """Return width, height, Pillow's mode and if pixels may be transparent, or raise Unreadable."""
    with open_stream(path) as stream, open_image(stream) as image:
        return *image.size, image.mode, image.has_transparency_data


def fit(
    image: Image.Image, size: int, channels: int, background: int = 0, pad: bool = False
) -> Array:
    """Return an image of any mode as uint8 (channels, size, size), by rules 3 to 6."""
    box = _all_of(image) if pad else _centred_square(image)
    convert = converter(image, box, background)
    width = box[2] - box[0]
    height = box[3] - box[1]
    longer = max(width, height)
    scaled = (max(1, round(size * width / longer)), max(1, round(size * height / longer)))
    if convert is _keep_mode or width * height <= STRIP_PIXELS:
        part = image if box == (0, 0, *image.size) else image.crop(box)
        small = convert(part).resize(scaled, Image.Resampling.BILINEAR)
    else:
        planes = []
        for plane in _convert_in_strips(image, box, convert):
            planes.append(plane.resize(scaled, Image.Resampling.BILINEAR))
        small = Image.merge("L" if len(planes) == 1 else "RGB", planes)
    pixels = _channels_first(np.array(small.convert(pillow_mode(channels))))
    return _padded(pixels, size, background)


def _padded(pixels: Array, size: int, background: int) -> Array:
    """Return pixels (C, h, w) in the middle of a square (C, size, size)."""
    channels, height, width = pixels.shape
    if height == width == size:
        return pixels
    square = np.full((channels, size, size), background, np.uint8)
    top = (size - height) // 2
    left = (size - width) // 2
    square[:, top : top + height, left : left + width] = pixels
    return square


def pillow_mode(channels: int) -> str:
    """Return Pillow's mode for images of one or three channels."""
    return "L" if channels == 1 else "RGB"


def _channels_first(pixels: Array) -> Array:
    if pixels.ndim == 2:
        return pixels[None]
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


@contextmanager
def damage_as_unreadable() -> Iterator[None]:
    """Raise any error of the body as Unreadable."""
    try:
        yield
    except Unreadable:
        raise
    except Exception as error:  # OSError, SyntaxError, struct.error, zlib.error and others
        raise _unreadable(error, "truncated or damaged") from None


def _unreadable(error: Exception, reason: str) -> Unreadable:
    """Return an Unreadable for an error raised while reading a file.

    A disk error has an errno; an error of Pillow about the file's content has none.
    """
    if isinstance(error, MemoryError):
        return Unreadable("too little memory to decode it", lasting=False)
    if isinstance(error, OSError) and error.errno:
        return Unreadable(f"cannot be read ({error.strerror})", lasting=False)
    return Unreadable(reason)


def open_stream(source: Path | bytes) -> BinaryIO:
    """Open a file; raise Unreadable if that fails or the file is empty."""
    try:
        stream = source.open("rb") if isinstance(source, Path) else io.BytesIO(source)
    except OSError as error:
        raise Unreadable(f"cannot be opened ({error.strerror})", lasting=False) from None
    if not stream.read(1):
        stream.close()
        raise Unreadable("empty file")
    stream.seek(0)
    return stream


def open_image(stream: BinaryIO) -> Image.Image:
    """Read the header and check the number of pixels; no pixel is decoded yet."""
    try:
        image = Image.open(stream, formats=_supported_formats())
    except Image.DecompressionBombError:
        raise Unreadable(f"more than {MAX_PIXELS:,} pixels") from None
    except Exception as error:  # damaged headers make plugins raise errors of many types
        raise _unreadable(error, "not an image") from None
    limit = MAX_PIXELS_BY_FORMAT.get(image.format or "", MAX_PIXELS)
    if image.width * image.height > limit:
        raise Unreadable(f"more than {limit:,} pixels")
    return image


def load_pixels(image: Image.Image) -> Image.Image:
    """Decode the pixels and drop the encoded or raw bytes that some plugins keep."""
    image.load()
    if hasattr(image, "fp"):
        image.fp = None
    return image


@cache
def _supported_formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def apply_orientation(image: Image.Image) -> Image.Image:
    """Rotate or mirror the image as its EXIF orientation requires."""
    try:
        if image.getexif().get(ExifTags.Base.Orientation, 1) == 1:
            return image
        return ImageOps.exif_transpose(image)
    except MemoryError:
        raise
    except Exception:  # damaged EXIF data does not affect the pixels
        return image


def _all_of(image: Image.Image) -> Box:
    if max(image.size) > MAX_PADDED_SIDE:
        raise Unreadable(f"longer than {MAX_PADDED_SIDE:,} pixels")
    return 0, 0, *image.size


def _centred_square(image: Image.Image) -> Box:
    side = min(image.size)
    left = (image.width - side) // 2
    top = (image.height - side) // 2
    return left, top, left + side, top + side


def strips(image: Image.Image, box: Box) -> Iterator[Image.Image]:
    """Yield the rows of a box in strips of about STRIP_PIXELS pixels."""
    left, top, right, bottom = box
    height = max(1, STRIP_PIXELS // (right - left))
    for start in range(top, bottom, height):
        yield image.crop((left, start, right, min(start + height, bottom)))


def _convert_in_strips(image: Image.Image, box: Box, convert: Convert) -> list[Image.Image]:
    """Return the converted channels of a box.

    Pillow takes four bytes a pixel for RGB in one piece; separate channels take three.
    """
    size = (box[2] - box[0], box[3] - box[1])
    planes = [Image.new("L", size) for _ in range(converted_channels(image, convert))]
    top = 0
    for strip in strips(image, box):
        for plane, channel in zip(planes, convert(strip).split(), strict=True):
            plane.paste(channel, (0, top))
        top += strip.height
    return planes


def converter(image: Image.Image, box: Box, background: int = 0) -> Convert:
    """Return the function that converts parts of a box to RGB, or to L if the image is grey."""
    if image.mode.startswith(("I", "F")):
        low, high = _value_range(image, box)
        scale = 255 / (high - low) if high > low else 0.0
        return partial(_rescale, low=low, scale=scale)
    if image.has_transparency_data:
        return partial(_composite, background=background)
    if image.mode in ("L", "RGB"):
        return _keep_mode
    return _to_grey if image.mode == "1" else _to_colour


def converted_channels(image: Image.Image, convert: Convert) -> int:
    """Return the channels of an image after conversion: 1 if it is grey, else 3."""
    return len(convert(image.crop((0, 0, 1, 1))).getbands())


def _keep_mode(image: Image.Image) -> Image.Image:
    return image


def _to_grey(image: Image.Image) -> Image.Image:
    return image.convert("L")


def _to_colour(image: Image.Image) -> Image.Image:
    return image.convert("RGB")


def _composite(image: Image.Image, background: int) -> Image.Image:
    colour = image.convert("RGBA")
    under = Image.new("RGBA", colour.size, (background, background, background, 255))
    return Image.alpha_composite(under, colour).convert("RGB")


def _value_range(image: Image.Image, box: Box) -> tuple[float, float]:
    """Return the smallest and the largest value in a box."""
    ranges = []
    for strip in strips(image, box):
        values = np.asarray(strip)
        ranges.append((float(values.min()), float(values.max())))
    low = float(np.min(ranges))
    high = float(np.max(ranges))
    if not np.isfinite(high - low):
        raise Unreadable("holds values that are not finite")
    return low, high


def _rescale(image: Image.Image, low: float, scale: float) -> Image.Image:
    values = np.asarray(image, dtype=np.float64)
    return Image.fromarray(np.rint((values - low) * scale).astype(np.uint8))
