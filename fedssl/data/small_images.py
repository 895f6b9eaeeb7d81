"""Warn about images that are far smaller than the size they are scaled to."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Sequence
from pathlib import Path

from fedssl.data.decode import Unreadable, read_header

SAMPLED = 200  # files whose headers are read
MIN_SHARE = 0.5  # of the size: images that are smaller are far smaller


def small_images_warning(folder: Path, names: Sequence[str], size: int) -> str | None:
    """Return a warning if the median of the shorter sides is far below `size` pixels, or None.

    The headers of a sample of files, evenly spaced, are read.
    """
    step = max(1, len(names) // SAMPLED)
    sides = []
    with warnings.catch_warnings(action="ignore"):  # of Pillow, about damaged headers
        for name in names[::step][:SAMPLED]:
            try:
                width, height, _ = read_header(folder / name)
            except Unreadable:
                continue
            sides.append(min(width, height))
    if not sides:
        return None
    side = statistics.median_low(sides)
    if side >= MIN_SHARE * size:
        return None
    return (
        f"half of the images have at most {side} pixels a side, but data.size = {size}: they are "
        f"enlarged, which takes time and adds no detail; set data.size = {side}"
    )
