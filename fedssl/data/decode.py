"""Image files to uint8 arrays, one defined way for every mode.

1. More than 50 megapixels (JPEG 2000: 12, since its decoder takes up to 24 bytes a pixel): refused from the
   header, before any pixel is decoded.
2. Of animations, the first frame. EXIF orientation is applied.
3. The largest centred square is kept, so any shape will do, 1 × 10,000 too.
4. Transparency is composited over black, the colour of zeros and of padding. Greyscale, palette, CMYK and the
   rest become RGB by Pillow's conversion; colour profiles are ignored.
5. 16-bit, 32-bit and float images are rescaled so that their smallest value is 0 and their largest 255: the
   type's range says little (a 12-bit camera fills a sixteenth of 16 bits). An image of one value turns black.
6. The square is scaled to `size`, bilinearly with antialias, up or down.

Large images are converted in strips of rows. Decoding one takes at most four times the memory of its pixels as
Pillow stores them, plus 50 MB (JPEG 2000: 300 MB in all).

This file is also the program that worker processes run. So it imports nothing of fedssl: it starts in a tenth of a
second, where torch alone takes more than one.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, ImageOps

RULES = 1  # to be raised with every change of the rules above: pixels decoded by other rules are of no use
MOST_PIXELS = 50_000_000
MOST_PIXELS_BY_FORMAT = {"JPEG2000": 12_000_000}
STRIP_PIXELS = 1_000_000  # converted at a time
# Only formats that are pixels: Pillow would also hand PostScript to an interpreter.
_FORMATS = ("PNG", "JPEG", "MPO", "GIF", "BMP", "DIB", "TIFF", "WEBP", "PPM", "JPEG2000", "AVIF")

Array = npt.NDArray[np.uint8]
Box = tuple[int, int, int, int]  # left, top, right, bottom
Convert = Callable[[Image.Image], Image.Image]


class Unreadable(Exception):  # noqa: N818 - a verdict on a file
    """Why a file gives no image, in a few words; `lasting` unless the disk or its rights may be to blame."""

    def __init__(self, reason: str, lasting: bool = True) -> None:
        super().__init__(reason)
        self.lasting = lasting


def decode(source: Path | bytes, size: int, channels: int = 3) -> Array:
    """One image file to uint8 (channels, size, size), or Unreadable. Pillow's warnings are the caller's affair."""
    with _stream(source) as stream:
        image = _opened(stream)
        try:
            image = _upright(_loaded(image))
            return _scaled(image, _square(image), size, channels)
        except Unreadable:
            raise
        except Exception as failure:  # whatever Pillow stumbles over: OSError, SyntaxError, struct.error, zlib.error …
            raise _damaged(failure, "truncated or damaged") from None


def decode_whole(path: Path, size: tuple[int, int], channels: int = 3) -> Array:
    """All of an image file as uint8 (channels, height, width), for whoever knows its `size` (width, height).

    Annotations are made on what their author's viewer showed. So an image is taken as stored where that has the size
    they speak of, else turned as its EXIF says; one that is of that size neither way is Unreadable.
    """
    with _stream(path) as stream:
        image = _opened(stream)
        stored = image.size
        try:
            image = _loaded(image)
            if stored != size:
                image = _upright(image)
            if image.size != size:
                raise Unreadable(f"has {stored[0]} × {stored[1]} pixels, not {size[0]} × {size[1]} as annotated")
            return to_array(image, channels)
        except Unreadable:
            raise
        except Exception as failure:
            raise _damaged(failure, "truncated or damaged") from None


def fit(image: Image.Image, size: int, channels: int) -> Array:
    """An L or RGB image to uint8 (channels, size, size), by rules 3, 4 and 6."""
    return _scaled(image, _square(image), size, channels)


def to_array(image: Image.Image, channels: int | None = None) -> Array:
    """An image of any mode to uint8 (C, H, W), by rules 4 and 5; without `channels`, one where it is grey."""
    box = (0, 0, *image.size)
    convert = _converter(image, box)
    if channels is None:
        channels = _converted_channels(image, convert)
    array = np.empty((channels, image.height, image.width), np.uint8)
    top = 0
    for strip in _strips(image, box):
        pixels = np.asarray(convert(strip).convert("L" if channels == 1 else "RGB"))
        rows = array[:, top : top + strip.height]
        rows[:] = pixels if channels == 1 else pixels.transpose(2, 0, 1)
        top += strip.height
    return array


def _scaled(image: Image.Image, box: Box, size: int, channels: int) -> Array:
    """The square `box` of an image to uint8 (channels, size, size)."""
    convert = _converter(image, box)
    side = box[2] - box[0]
    if convert is _unchanged or side * side <= STRIP_PIXELS:
        square = image if box == (0, 0, *image.size) else image.crop(box)
        small = _resized(convert(square), size)
    else:
        planes = [_resized(plane, size) for plane in _planes(image, box, convert)]
        small = Image.merge("L" if len(planes) == 1 else "RGB", planes)
    return _channels_first(np.array(small.convert("L" if channels == 1 else "RGB")))


def _resized(image: Image.Image, size: int) -> Image.Image:
    return image.resize((size, size), Image.Resampling.BILINEAR)


def _channels_first(pixels: Array) -> Array:
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _damaged(failure: Exception, reason: str) -> Unreadable:
    """Pillow's own errors have no number; those of a disk do. Memory may suffice another time."""
    if isinstance(failure, MemoryError):
        return Unreadable("too little memory to decode it", lasting=False)
    if isinstance(failure, OSError) and failure.errno:
        return Unreadable(f"cannot be read ({failure.strerror})", lasting=False)
    return Unreadable(reason)


def _stream(source: Path | bytes) -> BinaryIO:
    try:
        stream = source.open("rb") if isinstance(source, Path) else io.BytesIO(source)
    except OSError as failure:
        raise Unreadable(f"cannot be opened ({failure.strerror})", lasting=False) from None
    if not stream.read(1):
        stream.close()
        raise Unreadable("empty file")
    stream.seek(0)
    return stream


def _opened(stream: BinaryIO) -> Image.Image:
    """The image behind a header that is readable and not too large; no pixel is decoded yet."""
    try:
        image = Image.open(stream, formats=_formats())
    except Image.DecompressionBombError:
        raise Unreadable(f"more than {MOST_PIXELS:,} pixels") from None
    except Exception as failure:  # garbled headers make plugins raise more than Pillow's own error
        raise _damaged(failure, "not an image") from None
    limit = MOST_PIXELS_BY_FORMAT.get(image.format or "", MOST_PIXELS)
    if image.width * image.height > limit:
        raise Unreadable(f"more than {limit:,} pixels")
    return image


def _loaded(image: Image.Image) -> Image.Image:
    """Decode the pixels and drop the encoded or raw bytes that some plugins keep."""
    image.load()
    if hasattr(image, "fp"):
        image.fp = None
    return image


@cache
def _formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def _upright(image: Image.Image) -> Image.Image:
    """The image turned the way the camera was held."""
    try:
        if image.getexif().get(ExifTags.Base.Orientation, 1) == 1:
            return image
        return ImageOps.exif_transpose(image)
    except MemoryError:
        raise
    except Exception:  # garbled EXIF beside good pixels
        return image


def _square(image: Image.Image) -> Box:
    """The largest centred square."""
    side = min(image.size)
    left = (image.width - side) // 2
    top = (image.height - side) // 2
    return left, top, left + side, top + side


def _strips(image: Image.Image, box: Box) -> Iterator[Image.Image]:
    """The rows of a box, as many at a time as have STRIP_PIXELS pixels."""
    left, top, right, bottom = box
    height = max(1, STRIP_PIXELS // (right - left))
    for start in range(top, bottom, height):
        yield image.crop((left, start, right, min(start + height, bottom)))


def _planes(image: Image.Image, box: Box, convert: Convert) -> list[Image.Image]:
    """The channels of a box, converted strip by strip: Pillow takes four bytes a pixel for RGB in one piece."""
    size = (box[2] - box[0], box[3] - box[1])
    planes = [Image.new("L", size) for _ in range(_converted_channels(image, convert))]
    top = 0
    for strip in _strips(image, box):
        for plane, channel in zip(planes, convert(strip).split(), strict=True):
            plane.paste(channel, (0, top))
        top += strip.height
    return planes


def _converter(image: Image.Image, box: Box) -> Convert:
    """How pixels in a box of the image become RGB, or L where there is nothing but grey."""
    if image.mode.startswith(("I", "F")):
        low, high = _value_range(image, box)
        scale = 255 / (high - low) if high > low else 0.0
        return partial(_rescaled, low=low, scale=scale)
    if image.has_transparency_data:
        return _over_black
    if image.mode in ("L", "RGB"):
        return _unchanged
    return _to_grey if image.mode == "1" else _to_colour


def _converted_channels(image: Image.Image, convert: Convert) -> int:
    return len(convert(image.crop((0, 0, 1, 1))).getbands())


def _unchanged(image: Image.Image) -> Image.Image:
    return image


def _to_grey(image: Image.Image) -> Image.Image:
    return image.convert("L")


def _to_colour(image: Image.Image) -> Image.Image:
    return image.convert("RGB")


def _over_black(image: Image.Image) -> Image.Image:
    colour = image.convert("RGBA")
    black = Image.new("RGBA", colour.size, (0, 0, 0, 255))
    return Image.alpha_composite(black, colour).convert("RGB")


def _value_range(image: Image.Image, box: Box) -> tuple[float, float]:
    """The smallest and the largest value in a box."""
    ranges = []
    for strip in _strips(image, box):
        values = np.asarray(strip)
        ranges.append((float(values.min()), float(values.max())))
    low = float(np.min(ranges))
    high = float(np.max(ranges))
    if not np.isfinite(high - low):
        raise Unreadable("holds values that are not finite")
    return low, high


def _rescaled(image: Image.Image, low: float, scale: float) -> Image.Image:
    values = np.asarray(image, dtype=np.float64)
    return Image.fromarray(np.rint((values - low) * scale).astype(np.uint8))


Job = tuple[int, str]  # a row of the file to fill, and the path of the image
Outcome = int | list[Any]  # the checksum of the pixels, or [reason, whether it is lasting]


def wire_path(path: str) -> str:
    """A path as text that survives JSON and does not depend on a process's idea of how names are encoded."""
    return os.fsencode(path).decode("latin-1")


def fill(target: int, size: int, channels: int, jobs: Iterable[Sequence[Any]]) -> list[Outcome]:
    """Write the pixels of each job's file to its row of the open file `target`; OSError: it cannot be written."""
    outcomes: list[Outcome] = []
    for row, path in jobs:
        try:
            pixels = decode(Path(os.fsdecode(path.encode("latin-1"))), size, channels)
        except Unreadable as failure:
            outcomes.append([str(failure), failure.lasting])
            continue
        rest = memoryview(pixels.tobytes())
        outcomes.append(zlib.crc32(rest))
        place = row * len(rest)
        while rest:  # a nearly full disk takes a part, and refuses the rest with a reason
            written = os.pwrite(target, rest, place)
            rest, place = rest[written:], place + written
    return outcomes


def serve(target: int, size: int, channels: int) -> None:
    """Be a worker: a line of jobs in, a line of outcomes out (or the number of an error), until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks; it ends the input
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # it was killed: nobody wants to know
    warnings.simplefilter("ignore")
    for line in sys.stdin.buffer:
        try:
            answer: Any = fill(target, size, channels, json.loads(line))
        except OSError as failure:
            answer = failure.errno or -1
        os.write(sys.stdout.fileno(), json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:]))
