"""Convert polygons and run lengths to pixels and back, with pycocotools."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedssl.core.errors import DataError

Mask = npt.NDArray[np.uint8]


def to_rle(segmentation: Any, height: int, width: int) -> dict[str, Any]:
    """Return the compressed run lengths of a list of polygons, or of run lengths of either kind.

    Unlike pycocotools' annToRLE, check that run lengths have as many pixels as the image.
    """
    from pycocotools import mask

    try:
        if isinstance(segmentation, list):
            return dict(mask.merge(mask.frPyObjects(segmentation, height, width)))
        counts = segmentation["counts"]
        if isinstance(counts, list):
            if sum(counts) != height * width or min(counts) < 0:
                raise ValueError(
                    f"its run lengths cover {sum(counts)} pixels, "
                    f"but its image has {height * width}"
                )
            return dict(mask.frPyObjects(segmentation, height, width))
    except (OverflowError, TypeError, ValueError) as error:
        raise DataError(f"a segmentation is neither polygons nor run lengths: {error}") from None
    return dict(segmentation)


def has_pixels(segmentation: Any, height: int, width: int) -> bool:
    """True if at least one pixel is inside.

    A DataError if it is not a segmentation of an image of this size.
    """
    try:
        return bool(rasterise(segmentation, height, width).any())
    except (IndexError, OverflowError, TypeError, ValueError) as error:
        raise DataError(f"a segmentation is neither polygons nor run lengths: {error}") from None


def rasterise(segmentation: Any, height: int, width: int) -> Mask:
    """Return a mask (height, width) that is 1 inside."""
    from pycocotools import mask

    decoded: Mask = mask.decode(to_rle(segmentation, height, width))
    return decoded


def encode(inside: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """Return the compressed run lengths of a mask (height, width).

    Runs follow the columns, so pycocotools needs the mask in Fortran order.
    """
    from pycocotools import mask

    return dict(mask.encode(np.asfortranarray(inside, dtype=np.uint8)))


def area(rle: dict[str, Any]) -> float:
    """Return the number of pixels inside."""
    from pycocotools import mask

    return float(mask.area(rle))
