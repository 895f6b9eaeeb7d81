"""Convert image files to uint8 arrays, by the same rules for every format and mode.

1. Images of more than 50 megapixels are rejected from the header, before any pixel is decoded.
   JPEG 2000 has a limit of 12, since its decoder takes up to 24 bytes a pixel.
2. Of an animation, the first frame is used. EXIF orientation is applied.
3. The largest centred square is kept, so any shape is accepted, even 1 × 10,000.
4. Transparency is composited over `background`, by default black, the colour of padding. Greyscale,
   palette, CMYK and other modes become RGB by Pillow's conversion; colour profiles are ignored.
5. 16-bit, 32-bit and float images are rescaled so that their smallest value is 0 and their largest
   255, since the range of the type is not the range of the values: a 12-bit camera uses a sixteenth
   of 16 bits. An image of one value becomes black.
6. The square is scaled to `size`, bilinearly with antialias, up or down.

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


def decode(source: Path | bytes, size: int, channels: int = 3, background: int = 0) -> Array:
    """Return one image file as uint8 (channels, size, size), or raise Unreadable.

    `background` is the grey under transparent pixels, from 0 to 255.
    Pillow may issue warnings; the caller decides what to do with them.
    """
    with _open_stream(source) as stream:
        image = _open_image(stream)
        with _damage_as_unreadable():
            image = _apply_orientation(_load_pixels(image))
            return fit(image, size, channels, background)


def read_header(path: Path) -> tuple[int, int, str, bool]:
    """Return width, height, Pillow's mode and if pixels may be transparent, or raise Unreadable."""
    with _open_stream(path) as stream, _open_image(stream) as image:
        return *image.size, image.mode, image.has_transparency_data


def decode_whole(path: Path, size: tuple[int, int], channels: int = 3) -> Array:
    """Return all of an image file as uint8 (channels, height, width), given its (width, height).

    Annotations refer to the image as their author's viewer showed it. So the image is used as
    stored if that has the annotated size, otherwise rotated by its EXIF orientation. Raise
    Unreadable if neither has that size.
    """
    with _open_stream(path) as stream:
        image = _open_image(stream)
        stored_size = image.size
        with _damage_as_unreadable():
            image = _load_pixels(image)
            if stored_size != size:
                image = _apply_orientation(image)
            if image.size != size:
                raise Unreadable(
                    f"has {stored_size[0]} × {stored_size[1]} pixels, "
                    f"not {size[0]} × {size[1]} as annotated"
                )
            return to_array(image, channels)


def fit(image: Image.Image, size: int, channels: int, background: int = 0) -> Array:
    """Return an image of any mode as uint8 (channels, size, size), by rules 3 to 6."""
    box = _centred_square(image)
    convert = _converter(image, box, background)
    side = box[2] - box[0]
    if convert is _keep_mode or side * side <= STRIP_PIXELS:
        square = image if box == (0, 0, *image.size) else image.crop(box)
        small = _resize(convert(square), size)
    else:
        planes = [_resize(plane, size) for plane in _convert_in_strips(image, box, convert)]
        small = Image.merge("L" if len(planes) == 1 else "RGB", planes)
    return _channels_first(np.array(small.convert(_mode(channels))))


def to_array(image: Image.Image, channels: int | None = None) -> Array:
    """Return an image of any mode as uint8 (C, H, W), by rules 4 and 5.

    Without `channels`, C is 1 for a grey image and 3 for any other.
    """
    box = (0, 0, *image.size)
    convert = _converter(image, box)
    if channels is None:
        channels = _converted_channels(image, convert)
    array = np.empty((channels, image.height, image.width), np.uint8)
    top = 0
    for strip in _strips(image, box):
        pixels = np.asarray(convert(strip).convert(_mode(channels)))
        rows = array[:, top : top + strip.height]
        rows[:] = pixels if channels == 1 else pixels.transpose(2, 0, 1)
        top += strip.height
    return array


def _mode(channels: int) -> str:
    return "L" if channels == 1 else "RGB"


def _resize(image: Image.Image, size: int) -> Image.Image:
    return image.resize((size, size), Image.Resampling.BILINEAR)


def _channels_first(pixels: Array) -> Array:
    if pixels.ndim == 2:
        return pixels[None]
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


@contextmanager
def _damage_as_unreadable() -> Iterator[None]:
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


def _open_stream(source: Path | bytes) -> BinaryIO:
    try:
        stream = source.open("rb") if isinstance(source, Path) else io.BytesIO(source)
    except OSError as error:
        raise Unreadable(f"cannot be opened ({error.strerror})", lasting=False) from None
    if not stream.read(1):
        stream.close()
        raise Unreadable("empty file")
    stream.seek(0)
    return stream


def _open_image(stream: BinaryIO) -> Image.Image:
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


def _load_pixels(image: Image.Image) -> Image.Image:
    """Decode the pixels and drop the encoded or raw bytes that some plugins keep."""
    image.load()
    if hasattr(image, "fp"):
        image.fp = None
    return image


@cache
def _supported_formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def _apply_orientation(image: Image.Image) -> Image.Image:
    """Rotate or mirror the image as its EXIF orientation requires."""
    try:
        if image.getexif().get(ExifTags.Base.Orientation, 1) == 1:
            return image
        return ImageOps.exif_transpose(image)
    except MemoryError:
        raise
    except Exception:  # damaged EXIF data does not affect the pixels
        return image


def _centred_square(image: Image.Image) -> Box:
    side = min(image.size)
    left = (image.width - side) // 2
    top = (image.height - side) // 2
    return left, top, left + side, top + side


def _strips(image: Image.Image, box: Box) -> Iterator[Image.Image]:
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
    planes = [Image.new("L", size) for _ in range(_converted_channels(image, convert))]
    top = 0
    for strip in _strips(image, box):
        for plane, channel in zip(planes, convert(strip).split(), strict=True):
            plane.paste(channel, (0, top))
        top += strip.height
    return planes


def _converter(image: Image.Image, box: Box, background: int = 0) -> Convert:
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


def _converted_channels(image: Image.Image, convert: Convert) -> int:
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
    for strip in _strips(image, box):
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
