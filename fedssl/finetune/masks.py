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
            return dict(mask.frPyObjects(segmentation, height, width))
    except (TypeError, ValueError) as problem:
        raise DataError(f"a segmentation is neither polygons nor run lengths: {problem}") from None
    return dict(segmentation)


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
