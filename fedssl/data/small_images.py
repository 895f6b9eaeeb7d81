"""Read the headers of some images, and warn if these are far smaller than they are scaled to."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from fedssl.data.decode import Unreadable, read_header

SAMPLED = 200  # files whose headers are read
MIN_SHARE = 0.5  # of the size: images that are smaller are far smaller


class Header(NamedTuple):
    """The header of an image file."""

    width: int
    height: int
    mode: str  # Pillow's
    transparent: bool = False  # pixels may be, by an alpha channel or a clear colour


def sample_headers(folder: Path, names: Sequence[str]) -> dict[str, Header | None]:
    """Return the headers of a sample of files, evenly spaced; None for an unreadable file."""
    step = max(1, len(names) // SAMPLED)
    headers: dict[str, Header | None] = {}
    with warnings.catch_warnings(action="ignore"):  # of Pillow, about damaged headers
        for name in names[::step][:SAMPLED]:
            try:
                headers[name] = Header(*read_header(folder / name))
            except Unreadable:
                headers[name] = None
    return headers


def scaled_sides(headers: Iterable[Header], *, pad: bool) -> list[int]:
    """Return the side of each image that is scaled to `data.size`: the longer one with padding."""
    choose = max if pad else min
    return [choose(header.width, header.height) for header in headers]


def small_images_warning(
    folder: Path, names: Sequence[str], size: int, *, pad: bool = False
) -> str | None:
    """Return a warning if the median of the scaled sides is far below `size` pixels, or None."""
    headers = filter(None, sample_headers(folder, names).values())
    sides = scaled_sides(headers, pad=pad)
    if not sides:
        return None
    side = statistics.median_low(sides)
    if side >= MIN_SHARE * size:
        return None
    return (
        f"half of the images have at most {side} pixels a side, but data.size = {size}: they are "
        f"enlarged, which takes time and adds no detail; set data.size = {side}"
    )
