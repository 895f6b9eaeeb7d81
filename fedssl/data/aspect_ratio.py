"""Find images that are far from square, and warn if cropping them to squares loses much of them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedssl.data.small_images import Header, sample_headers


def lost_share(header: Header) -> float:
    """Return the share of an image's area outside of its largest centred square."""
    return 1 - min(header.width, header.height) / max(header.width, header.height)


def is_elongated(header: Header) -> bool:
    """True if cropping loses more than a third of the area: a side is above 1.5 times the other.

    A third is what cameras' 3 : 2 loses, where the subject is mostly in the middle; 4 : 3 and pages
    lose less. The shorter side may have been rounded by half a pixel, as in 500 × 333.
    """
    shorter = min(header.width, header.height)
    longer = max(header.width, header.height)
    return longer > 1.5 * (shorter + 0.5)


def are_mostly_elongated(headers: Sequence[Header]) -> bool:
    """True if more than half of the images are elongated, and so is the median image."""
    return 2 * sum(map(is_elongated, headers)) > len(headers)


def median_lost(headers: Iterable[Header]) -> float:
    """Return a share of the area that half of the images lose at least."""
    return statistics.median_low(map(lost_share, headers))


def cropping_warning(folder: Path, names: Sequence[str]) -> str | None:
    """Return a warning if cropping loses more than a third of the median image, or None."""
    headers = list(filter(None, sample_headers(folder, names).values()))
    if not are_mostly_elongated(headers):
        return None
    return (
        f"half of the images lose at least {median_lost(headers):.0%} of their area, because they "
        'are cropped to squares: see `fedssl views`, and set data.fit = "pad" to keep all of it'
    )
