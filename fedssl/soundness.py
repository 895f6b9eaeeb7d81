"""Whether an upload, by itself, is what the wire says and finite, or some of its rows; how far its models have come."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fedssl.algorithm import Features, Rows, Spec
from fedssl.layout import Layout
from fedssl.rows import finite
from fedssl.running_statistics import variance_fault
from fedssl.tree import State, Tree, Value, tensor

MAX_IMAGES = 10**7  # that one client may claim
UNIT = 0.01  # how far the length of a row of unit length may be from 1


def sifted(upload: Tree, wire: Mapping[str, Spec]) -> tuple[Tree, str | None]:
    """An upload without those rows of features that must not count, and what was wrong with them; the upload itself and
    None where all may. To be asked before `fault`, which finds missing keys and would refuse the whole for a row."""
    said = []
    for key, spec in wire.items():
        if isinstance(spec, Features) and upload.keys() >= {key, *spec.columns}:
            left, why = _sift(upload, wire, key, spec)
            if why is not None:
                upload = {**upload, **left}
                said.append(f"{key}: {why}")
    return upload, "; ".join(said) or None


def _sift(upload: Tree, wire: Mapping[str, Spec], key: str, spec: Features) -> tuple[Tree, str | None]:
    """What is left of features and their columns, and why that is not all."""
    columns = {name: _as_rows(wire[name]) for name in spec.columns}
    if (why := _mismatch(upload, key, spec, columns)) is not None:
        return _no_rows({key: spec.rows, **columns}, upload), f"all left out, {why}"
    features = tensor(upload, key)
    some = features[: spec.most]
    good = (torch.linalg.vector_norm(some, dim=1) - 1).abs() <= UNIT  # of NaN this is false
    if len(some) == len(features) and bool(good.all()):
        return {}, None
    bad, infinite = int((~good).sum()), int((~torch.isfinite(some).all(1)).sum())
    surplus = len(features) - len(some)
    counts = {"not finite": infinite, "not of unit length": bad - infinite, f"more than {spec.most}": surplus}
    reasons = ", ".join(f"{count} {reason}" for reason, count in counts.items() if count)
    left = {name: tensor(upload, name)[: spec.most][good] for name in (key, *columns)}
    return left, f"{bad + surplus} of {len(features)} rows left out, {reasons}"


def _as_rows(spec: Spec) -> Rows:
    assert isinstance(spec, Rows), "what is said of each row is a row"
    return spec


def _mismatch(upload: Tree, key: str, spec: Features, columns: Mapping[str, Rows]) -> str | None:
    """Why nobody can tell which row is which, if so."""
    for name, rows in {key: spec.rows, **columns}.items():
        if (why := _shape_fault(upload[name], rows)) is not None:
            return f"{name} {why}"
    counts = {name: len(tensor(upload, name)) for name in (key, *columns)}
    return None if len(set(counts.values())) == 1 else f"numbers of rows differ: {counts}"


def _no_rows(rows: Mapping[str, Rows], upload: Tree) -> Tree:
    """Tensors as expected, of no rows, where the upload's models lie."""
    device = next((value.floats.device for value in upload.values() if isinstance(value, State)), None)
    return {name: torch.empty([n or 0 for n in r.shape], dtype=r.dtype, device=device) for name, r in rows.items()}


def fault(images: object, upload: Tree, wire: Mapping[str, Spec]) -> str | None:
    """Why an upload of a client that claims so many images must not count; None if it is what the wire says. Whether
    its models are finite is seen by `journey`."""
    if isinstance(images, bool) or not isinstance(images, int) or not 0 < images <= MAX_IMAGES:
        return f"claims {images!r} images"
    if upload.keys() != wire.keys():
        odd = sorted(upload.keys() ^ wire.keys())
        return f'key "{odd[0]}" is {"not expected" if odd[0] in upload else "missing"}'
    return next((f"{key}: {why}" for key, spec in wire.items() if (why := _fault(upload[key], spec))), None)


def _fault(value: Value, spec: Spec) -> str | None:
    if isinstance(spec, Layout):
        if not isinstance(value, State):
            return "is not a model"
        return spec.first_difference(value.layout) or _rows_fault(value) or variance_fault(value)
    if isinstance(spec, Features):
        spec = spec.rows
    if isinstance(spec, Rows):
        wrong = _shape_fault(value, spec)
        return wrong or (None if isinstance(value, Tensor) and bool(torch.isfinite(value).all()) else "is not finite")
    kind = int if isinstance(spec, range) else spec
    if isinstance(value, bool) or not isinstance(value, kind):
        return f"is not {kind.__name__}"
    if isinstance(spec, range) and value not in spec:
        return f"is not one of {spec.start} … {spec.stop - 1}"
    return None if value == value and abs(value) != float("inf") else "is not finite"


def _shape_fault(value: Value, rows: Rows) -> str | None:
    if not isinstance(value, Tensor) or value.dtype != rows.dtype or len(value.shape) != len(rows.shape):
        return f"is not {rows.dtype} of {len(rows.shape)} dimensions"
    if any(want is not None and want != got for want, got in zip(rows.shape, value.shape, strict=True)):
        return f"has shape {tuple(value.shape)}, expected {rows.shape}"
    return None


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
