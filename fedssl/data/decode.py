"""Image files to uint8 arrays, one defined way for every mode.

1. More than 50 megapixels: refused from the header, before any pixel is decoded.
2. Of animations, the first frame. EXIF orientation is applied.
3. The largest centred square is kept, so any shape will do, 1 × 10,000 too.
4. Transparency is composited over black, the colour of zeros and of padding. Greyscale, palette, CMYK and the
   rest become RGB by Pillow's conversion; colour profiles are ignored.
5. 16-bit, 32-bit and float images are rescaled so that their smallest value is 0 and their largest 255: the
   type's range says little (a 12-bit camera fills a sixteenth of 16 bits). An image of one value turns black.
6. The square is scaled to `size`, bilinearly with antialias, up or down.

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
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

RULES = 1  # to be raised with every change of the rules above: pixels decoded by other rules are of no use
MOST_PIXELS = 50_000_000
# Only formats that are pixels: Pillow would also hand PostScript to an interpreter.
_FORMATS = ("PNG", "JPEG", "MPO", "GIF", "BMP", "DIB", "TIFF", "WEBP", "PPM", "JPEG2000", "AVIF")

Array = npt.NDArray[np.uint8]


class Unreadable(Exception):  # noqa: N818 - a verdict on a file
    """Why a file gives no image, in a few words; `lasting` unless the disk or its rights may be to blame."""

    def __init__(self, reason: str, lasting: bool = True) -> None:
        super().__init__(reason)
        self.lasting = lasting


def decode(source: Path | bytes, size: int, channels: int = 3) -> Array:
    """One image file to uint8 (channels, size, size), or Unreadable. Pillow's warnings are the caller's affair."""
    with _stream(source) as stream, _opened(stream) as image:
        try:
            image.load()
            square = to_eight_bits(_square(_upright(image)))
        except Unreadable:
            raise
        except Exception as failure:  # whatever Pillow stumbles over: OSError, SyntaxError, struct.error, zlib.error …
            raise _damaged(failure, "truncated or damaged") from None
    return _scaled(square, size, channels)


def decode_whole(path: Path, size: tuple[int, int], channels: int = 3) -> Array:
    """All of an image file as uint8 (channels, height, width), for whoever knows its `size` (width, height).

    Annotations are made on what their author's viewer showed. So an image is taken as stored where that has the size
    they speak of, else turned as its EXIF says; one that is of that size neither way is Unreadable.
    """
    with _stream(path) as stream, _opened(stream) as image:
        try:
            image.load()
            shown = image if image.size == size else _upright(image)
            if shown.size != size:
                raise Unreadable(f"has {image.width} × {image.height} pixels, not {size[0]} × {size[1]} as annotated")
            return to_array(to_eight_bits(shown).convert("L" if channels == 1 else "RGB"))
        except Unreadable:
            raise
        except Exception as failure:
            raise _damaged(failure, "truncated or damaged") from None


def fit(image: Image.Image, size: int, channels: int) -> Array:
    """An L or RGB image to uint8 (channels, size, size), by rules 3, 4 and 6."""
    return _scaled(_square(image), size, channels)


def _scaled(square: Image.Image, size: int, channels: int) -> Array:
    small = square.resize((size, size), Image.Resampling.BILINEAR)
    return to_array(small.convert("L" if channels == 1 else "RGB"))


def _damaged(failure: Exception, reason: str) -> Unreadable:
    """Pillow's own errors have no number; those of a disk do."""
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
    if image.width * image.height > MOST_PIXELS:
        raise Unreadable(f"more than {MOST_PIXELS:,} pixels")
    return image


@cache
def _formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def _upright(image: Image.Image) -> Image.Image:
    """The image turned the way the camera was held."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # garbled EXIF beside good pixels
        return image


def _square(image: Image.Image) -> Image.Image:
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side))


def to_eight_bits(image: Image.Image) -> Image.Image:
    """Any mode to RGB, or to L where there is nothing but grey."""
    if image.mode.startswith(("I", "F")):
        return _rescaled(image)
    if image.has_transparency_data:
        colour = image.convert("RGBA")
        black = Image.new("RGBA", colour.size, (0, 0, 0, 255))
        return Image.alpha_composite(black, colour).convert("RGB")
    return image.convert("L" if image.mode in ("1", "L") else "RGB")


def _rescaled(image: Image.Image) -> Image.Image:
    values = np.asarray(image, dtype=np.float64)
    low, high = values.min(), values.max()
    if not np.isfinite(high - low):
        raise Unreadable("holds values that are not finite")
    scale = 255 / (high - low) if high > low else 0.0
    return Image.fromarray(np.rint((values - low) * scale).astype(np.uint8))


def to_array(image: Image.Image) -> Array:
    """An L or RGB image to uint8 (C, H, W)."""
    pixels = np.array(image)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


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
