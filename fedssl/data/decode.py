"""Image files to uint8 tensors, one defined way for every mode.

1. More than 50 megapixels: refused from the header, before any pixel is decoded.
2. Of animations, the first frame. EXIF orientation is applied.
3. The largest centred square is kept, so any shape will do, 1 × 10,000 too.
4. Transparency is composited over black, the colour of zeros and of padding. Greyscale, palette, CMYK and the
   rest become RGB by Pillow's conversion; colour profiles are ignored.
5. 16-bit, 32-bit and float images are rescaled so that their smallest value is 0 and their largest 255: the
   type's range says little (a 12-bit camera fills a sixteenth of 16 bits). An image of one value turns black.
6. The square is scaled to `size`, bilinearly with antialias, up or down.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from fedssl.data.progress import Say, meter
from fedssl.errors import DataError

MOST_PIXELS = 50_000_000
# Only formats that are pixels: Pillow would also hand PostScript to an interpreter.
_FORMATS = ("PNG", "JPEG", "MPO", "GIF", "BMP", "DIB", "TIFF", "WEBP", "PPM", "JPEG2000", "AVIF")
_CHUNK = 32  # files per task: a million files make 30,000 tasks, not a million

Open = Callable[[str], Path | bytes]


def decode(source: Path | bytes, size: int, channels: int = 3) -> Tensor:
    """One image file to uint8 (channels, size, size); a DataError says in a few words what is wrong."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _decode(source, size, channels)


def decode_all(names: Sequence[str], source: Open, size: int, channels: int, say: Say) -> tuple[Tensor, dict[int, str]]:
    """Decode `source(name)` of all names in a pool of threads.

    Returns the pixels (n, channels, size, size) of those that could be read, in order, and the places in
    `names` of those that could not, each with its reason.
    """
    pixels = torch.empty(len(names), channels, size, size, dtype=torch.uint8)
    bad: dict[int, str] = {}
    chunks = [names[start : start + _CHUNK] for start in range(0, len(names), _CHUNK)]

    def work(chunk: Sequence[str]) -> list[Tensor | str]:
        return [_attempt(name, source, size, channels) for name in chunk]

    # Filters of warnings belong to the whole process, so they are changed once, around all threads.
    with warnings.catch_warnings(), meter(f"decoding {len(names):,} images", len(names), say) as advance:
        warnings.simplefilter("ignore")
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            done = 0
            try:
                for results in pool.map(work, chunks):
                    for result in results:
                        if isinstance(result, str):
                            bad[done] = result
                        else:
                            pixels[done - len(bad)] = result
                        done += 1
                    advance(len(results))
            except BaseException:  # Ctrl-C must not wait for the rest
                pool.shutdown(cancel_futures=True)
                raise
    return pixels[: len(names) - len(bad)], bad


def _attempt(name: str, source: Open, size: int, channels: int) -> Tensor | str:
    try:
        return _decode(source(name), size, channels)
    except DataError as failure:
        return str(failure)


def _decode(source: Path | bytes, size: int, channels: int) -> Tensor:
    with _stream(source) as stream, _opened(stream) as image:
        try:
            image.load()
            square = to_eight_bits(_square(_upright(image)))
        except DataError:
            raise
        except Exception:  # whatever Pillow stumbles over: OSError, SyntaxError, struct.error, zlib.error …
            raise DataError("truncated or damaged") from None
    small = square.resize((size, size), Image.Resampling.BILINEAR)
    return to_tensor(small.convert("L" if channels == 1 else "RGB"))


def _stream(source: Path | bytes) -> BinaryIO:
    try:
        stream = source.open("rb") if isinstance(source, Path) else io.BytesIO(source)
    except OSError as failure:
        raise DataError(f"cannot be opened ({failure.strerror})") from None
    if not stream.read(1):
        stream.close()
        raise DataError("empty file")
    stream.seek(0)
    return stream


def _opened(stream: BinaryIO) -> Image.Image:
    """The image behind a header that is readable and not too large; no pixel is decoded yet."""
    try:
        image = Image.open(stream, formats=_formats())
    except Image.DecompressionBombError:
        raise DataError(f"more than {MOST_PIXELS:,} pixels") from None
    except Exception:  # garbled headers make plugins raise more than Pillow's own error
        raise DataError("not an image") from None
    if image.width * image.height > MOST_PIXELS:
        raise DataError(f"more than {MOST_PIXELS:,} pixels")
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
        raise DataError("holds values that are not finite")
    scale = 255 / (high - low) if high > low else 0.0
    return Image.fromarray(np.rint((values - low) * scale).astype(np.uint8))


def to_tensor(image: Image.Image) -> Tensor:
    """An L or RGB image to uint8 (C, H, W)."""
    pixels = torch.from_numpy(np.array(image))
    return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1).contiguous()
