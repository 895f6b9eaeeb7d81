"""Plain versions of two of torchvision's compiled operators, for a wheel that does not fit torch.

Only tests use them. Both are written for clarity;
tests/downstream/object_detection/test_operators.py has numbers worked out by hand, and compares
`roi_align` with torchvision's own slow version of it.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import Tensor

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt "
    "pooled_width, int sampling_ratio, bool aligned) -> Tensor",
)


def define() -> torch.library.Library:
    """Define schemas, without which torchvision does not import, and kernels, while the object
    exists.
    """
    library = torch.library.Library("torchvision", "DEF")
    for schema in SCHEMAS:
        library.define(schema)
    library.impl("nms", nms, "CPU")
    library.impl("roi_align", roi_align, "CompositeImplicitAutograd")
    return library


def announce() -> None:
    """Mark torchvision's operators as available."""
    for name in ("torchvision.extension", "torchvision.ops.roi_align"):
        sys.modules[name]._has_ops = lambda: True  # type: ignore[attr-defined]


def nms(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """Return the indices of boxes (n, 4) that no better one overlaps above the threshold, best
    first.
    """
    corners, rest, kept = (
        boxes.detach().numpy(),
        scores.argsort(descending=True, stable=True).numpy(),
        [],
    )
    areas = (corners[:, 2:] - corners[:, :2]).prod(1)
    while len(rest):
        best, rest = rest[0], rest[1:]
        kept.append(int(best))
        low, high = (
            np.maximum(corners[best, :2], corners[rest, :2]),
            np.minimum(corners[best, 2:], corners[rest, 2:]),
        )
        overlap = (high - low).clip(min=0).prod(1)
        rest = rest[overlap / (areas[best] + areas[rest] - overlap) <= threshold]
    return torch.tensor(kept, dtype=torch.int64)


def roi_align(
    maps: Tensor, rois: Tensor, scale: float, height: int, width: int, sampling: int, aligned: bool
) -> Tensor:
    """Pool maps (n, C, H, W) in regions (k, 5), image index first; return (k, C, height, width).

    The points of a bin are a grid of `sampling`² or, with `sampling` 0 or less, of about one a
    cell. Bilinear interpolation and the mean are separable: a pooled region is rows × map ×
    columns.
    """
    shift = 0.5 if aligned else 0.0
    corners = rois[:, 1:] * scale - shift
    rows = _weights(corners[:, 1], corners[:, 3], height, sampling, maps.shape[2], aligned)
    columns = _weights(corners[:, 0], corners[:, 2], width, sampling, maps.shape[3], aligned)
    image, pooled = rois[:, 0].long(), maps.new_zeros(len(rois), maps.shape[1], height, width)
    for number, one in enumerate(maps):
        mine = (image == number).nonzero()[:, 0]
        part = torch.einsum("kph,chw,kqw->kcpq", rows[mine], one, columns[mine])
        pooled = pooled.index_put((mine,), part)
    return pooled


def _weights(
    start: Tensor, end: Tensor, bins: int, sampling: int, size: int, aligned: bool
) -> Tensor:
    """Return (k, bins, size): the weight of each cell along one axis in each bin of each region."""
    length = end - start if aligned else (end - start).clamp(min=1.0)
    bin = length / bins
    points = torch.full_like(bin, sampling) if sampling > 0 else bin.ceil().clamp(min=1.0)
    place = torch.arange(int(points.max()) if len(points) else 1)
    within = (place + 0.5) / points[:, None]  # of a bin; entries from `points` on are unused
    at = start[:, None, None] + bin[:, None, None] * (
        torch.arange(bins)[:, None] + within[:, None, :]
    )
    nothing = (at < -1) | (at > size) | (place >= points[:, None])[:, None, :]
    hats = (1 - (at.clamp(0, size - 1)[..., None] - torch.arange(size)).abs()).clamp(
        min=0
    )  # one over each cell
    return hats.masked_fill(nothing[..., None], 0.0).sum(2) / points[:, None, None]
