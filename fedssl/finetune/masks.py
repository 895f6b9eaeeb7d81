"""Polygons and run lengths to pixels, and back: pycocotools' own, behind plain arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedssl.errors import DataError

Mask = npt.NDArray[np.uint8]


def to_rle(segmentation: Any, height: int, width: int) -> dict[str, Any]:
    """Compressed run lengths of a list of polygons, or of run lengths of either kind."""
    from pycocotools import mask

    try:
        if isinstance(segmentation, list):
            return dict(mask.merge(mask.frPyObjects(segmentation, height, width)))
        if isinstance(segmentation["counts"], list):
            if sum(segmentation["counts"]) != height * width or min(segmentation["counts"]) < 0:
                raise ValueError(f"runs of {sum(segmentation['counts'])} pixels for {height * width}")
            return dict(mask.frPyObjects(segmentation, height, width))
    except (OverflowError, TypeError, ValueError) as problem:
        raise DataError(f"a segmentation is neither polygons nor run lengths: {problem}") from None
    return dict(segmentation)


def covers(segmentation: Any, height: int, width: int) -> bool:
    """Whether there is a pixel inside. A DataError if it is no segmentation of an image of this size."""
    try:
        return bool(rasterise(segmentation, height, width).any())
    except (IndexError, OverflowError, TypeError, ValueError) as problem:
        raise DataError(f"a segmentation is neither polygons nor run lengths: {problem}") from None


def rasterise(segmentation: Any, height: int, width: int) -> Mask:
    """(height, width), 1 inside."""
    from pycocotools import mask

    decoded: Mask = mask.decode(to_rle(segmentation, height, width))
    return decoded


def encode(inside: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """Compressed run lengths of a mask (height, width). They go down the columns, so that is how it must lie."""
    from pycocotools import mask

    return dict(mask.encode(np.asfortranarray(inside, dtype=np.uint8)))


def area(rle: dict[str, Any]) -> float:
    from pycocotools import mask

    return float(mask.area(rle))
