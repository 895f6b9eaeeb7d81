"""Whether an upload, by itself, is what the wire says and finite, and how far its models have come."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fedssl.algorithm import Rows, Spec
from fedssl.layout import Layout
from fedssl.rows import finite
from fedssl.tree import State, Tree, Value

MOST_IMAGES = 10**8  # no client holds as many; more is a lie that would decide the mean


def fault(images: object, upload: Tree, wire: Mapping[str, Spec]) -> str | None:
    """Why an upload of a client that claims so many images must not count; None if it is what the wire says. Whether
    its models are finite is seen by `journey`."""
    if isinstance(images, bool) or not isinstance(images, int) or not 0 < images <= MOST_IMAGES:
        return f"claims {images!r} images"
    if upload.keys() != wire.keys():
        odd = sorted(upload.keys() ^ wire.keys())
        return f'key "{odd[0]}" is {"not expected" if odd[0] in upload else "missing"}'
    return next((f"{key}: {why}" for key, spec in wire.items() if (why := _fault(upload[key], spec))), None)


def _fault(value: Value, spec: Spec) -> str | None:
    if isinstance(spec, Layout):
        if not isinstance(value, State):
            return "is not a model"
        return spec.first_difference(value.layout) or _rows_fault(value)
    if isinstance(spec, Rows):
        if not isinstance(value, Tensor) or value.dtype != spec.dtype or len(value.shape) != len(spec.shape):
            return f"is not {spec.dtype} of {len(spec.shape)} dimensions"
        if any(want is not None and want != got for want, got in zip(spec.shape, value.shape, strict=True)):
            return f"has shape {tuple(value.shape)}, expected {spec.shape}"
        return None if bool(torch.isfinite(value).all()) else "is not finite"
    kind = int if isinstance(spec, range) else spec
    if isinstance(value, bool) or not isinstance(value, kind):
        return f"is not {kind.__name__}"
    if isinstance(spec, range) and value not in spec:
        return f"is not one of {spec.start} … {spec.stop - 1}"
    return None if value == value and abs(value) != float("inf") else "is not finite"


def _rows_fault(state: State) -> str | None:
    layout = state.layout
    if state.floats.dtype != torch.float32 or state.floats.shape != (layout.floats,):
        return "its float row is not what its layout says"
    if state.counts.dtype != torch.int64 or state.counts.shape != (layout.counts,):
        return "its counter row is not what its layout says"
    return None


def journey(message: Tree, upload: Tree) -> tuple[float | None, str | None]:
    """How far the models that came back are from those sent under the same keys, over parameters: None where there
    are none, infinity where it is too far for float32 to say. And what is wrong with them. One pass does both: a
    distance is finite only if its terms are."""
    squares = []
    for key, back in upload.items():
        if not isinstance(back, State):
            continue
        sound, sent = False, message.get(key)
        if isinstance(sent, State):
            squares.append(back.distance(sent).item() ** 2)
            sound = math.isfinite(squares[-1]) and all(map(finite, back.stretches(("statistic", "buffer"))))
        if not sound and not finite(back.floats):
            return None, f"{key}: is not finite"
    return (math.sqrt(sum(squares)) if squares else None), None
