"""Validate one upload against the algorithm's schema, without comparing it with others."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fedssl.algorithm import Features, Spec, TensorSpec
from fedssl.core.state.arithmetic import finite
from fedssl.core.state.layout import Layout
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, Value, tensor

Schema = Mapping[str, Spec]

MAX_IMAGES = 10**7  # that one client may claim
UNIT_TOLERANCE = 0.01  # of the length of a row that must have unit length

NOT_FINITE = "contains NaN or infinite values"


def drop_bad_rows(upload: Tree, schema: Schema) -> tuple[Tree, str | None]:
    """Return an upload without invalid rows of shared features, and the reason if any were dropped.

    Call this before `validation_error`, which would reject the whole upload for one invalid row.
    """
    reasons = []
    for key, spec in schema.items():
        if not isinstance(spec, Features):
            continue
        if not upload.keys() >= {key, *spec.columns}:
            continue  # validation_error reports the missing key
        remaining, reason = _valid_rows(upload, schema, key, spec)
        if reason is not None:
            upload = {**upload, **remaining}
            reasons.append(f"{key}: {reason}")
    return upload, "; ".join(reasons) or None


def _valid_rows(upload: Tree, schema: Schema, key: str, spec: Features) -> tuple[Tree, str | None]:
    """Return the valid rows of features and of their columns, and why some were dropped."""
    columns = {name: _row_spec(schema[name]) for name in spec.columns}
    mismatch = _row_mismatch(upload, {key: spec.rows, **columns})
    if mismatch is not None:
        return _empty_rows({key: spec.rows, **columns}, upload), f"all left out, {mismatch}"
    features = tensor(upload, key)
    considered = features[: spec.max_rows]
    lengths = torch.linalg.vector_norm(considered, dim=1)
    valid = (lengths - 1).abs() <= UNIT_TOLERANCE  # False for NaN
    if len(considered) == len(features) and bool(valid.all()):
        return {}, None
    bad = int((~valid).sum())
    not_finite = int((~torch.isfinite(considered).all(1)).sum())
    surplus = len(features) - len(considered)
    reasons = []
    if not_finite:
        reasons.append(f"{not_finite} not finite")
    if bad > not_finite:
        reasons.append(f"{bad - not_finite} not of unit length")
    if surplus:
        reasons.append(f"{surplus} more than {spec.max_rows}")
    remaining = {name: tensor(upload, name)[: spec.max_rows][valid] for name in (key, *columns)}
    dropped = f"{bad + surplus} of {len(features)} rows left out, {', '.join(reasons)}"
    return remaining, dropped


def _row_spec(spec: Spec) -> TensorSpec:
    assert isinstance(spec, TensorSpec), "columns of features are rows"
    return spec


def _row_mismatch(upload: Tree, specs: Mapping[str, TensorSpec]) -> str | None:
    """Return why rows of several tensors cannot be matched to each other; None if they can."""
    for name, rows in specs.items():
        error = _shape_error(upload[name], rows)
        if error is not None:
            return f"{name} {error}"
    counts = {name: len(tensor(upload, name)) for name in specs}
    if len(set(counts.values())) > 1:
        return f"numbers of rows differ: {counts}"
    return None


def _empty_rows(specs: Mapping[str, TensorSpec], upload: Tree) -> Tree:
    """Return tensors without rows, on the device of the upload's models."""
    device = None
    for value in upload.values():
        if isinstance(value, State):
            device = value.floats.device
            break
    empty = {}
    for name, rows in specs.items():
        shape = [size or 0 for size in rows.shape]
        empty[name] = torch.empty(shape, dtype=rows.dtype, device=device)
    return empty


def validation_error(images: object, upload: Tree, schema: Schema) -> str | None:
    """Return why an upload does not match the schema; None if it does.

    Whether its models are finite is checked by `check_update`, in the same pass over memory.
    """
    if not isinstance(images, int) or isinstance(images, bool) or not 0 < images <= MAX_IMAGES:
        return f"claims {images!r} images, not an integer from 1 to {MAX_IMAGES:,}"
    if upload.keys() != schema.keys():
        key = min(upload.keys() ^ schema.keys())
        problem = "not expected" if key in upload else "missing"
        return f'key "{key}" is {problem}'
    for key, spec in schema.items():
        error = _value_error(upload[key], spec)
        if error:
            return f"{key}: {error}"
    return None


def _value_error(value: Value, spec: Spec) -> str | None:
    if isinstance(spec, Layout):
        return _model_error(value, spec)
    if isinstance(spec, Features):
        return _rows_error(value, spec.rows)
    if isinstance(spec, TensorSpec):
        return _rows_error(value, spec)
    return _number_error(value, spec)


def _model_error(value: Value, layout: Layout) -> str | None:
    if not isinstance(value, State):
        return "is not a model"
    difference = layout.first_difference(value.layout)
    if difference:
        return difference
    floats = value.floats
    if floats.dtype != torch.float32 or floats.shape != (value.layout.floats,):
        return "its float row does not match its layout"
    counts = value.counts
    if counts.dtype != torch.int64 or counts.shape != (value.layout.counts,):
        return "its counter row does not match its layout"
    return None


def _rows_error(value: Value, rows: TensorSpec) -> str | None:
    error = _shape_error(value, rows)
    if error is not None:
        return error
    assert isinstance(value, Tensor)
    if not bool(torch.isfinite(value).all()):
        return NOT_FINITE
    return None


def _number_error(value: Value, spec: range | type[float] | type[int]) -> str | None:
    kind = int if isinstance(spec, range) else spec
    if isinstance(value, bool) or not isinstance(value, kind):
        return f"is not {kind.__name__}"
    if isinstance(spec, range) and value not in spec:
        return f"is not one of {spec.start} … {spec.stop - 1}"
    if isinstance(value, float) and not math.isfinite(value):
        return "is not finite"
    return None


def _shape_error(value: Value, rows: TensorSpec) -> str | None:
    dimensions = len(rows.shape)
    if not isinstance(value, Tensor) or value.dtype != rows.dtype or value.ndim != dimensions:
        return f"is not {rows.dtype} of {dimensions} dimensions"
    for expected, actual in zip(rows.shape, value.shape, strict=True):
        if expected is not None and expected != actual:
            return f"has shape {tuple(value.shape)}, expected {rows.shape}"
    return None


def check_update(sent: Tree, upload: Tree) -> tuple[float | None, str | None]:
    """Return the L2 norm of an upload's update over parameters, and an error.

    The error is set if a model contains NaN or infinite values. The norm is None if no model was
    sent under the same key, and infinite if float32 overflows. Both are computed in one pass: if
    the distance is finite, so are all parameters.
    """
    squares = []
    for key, returned in upload.items():
        if not isinstance(returned, State):
            continue
        start = sent.get(key)
        known_finite = False
        if isinstance(start, State):
            square = returned.distance(start).item() ** 2
            squares.append(square)
            known_finite = math.isfinite(square) and _others_finite(returned)
        if not known_finite and not finite(returned.floats):
            return None, f"{key}: {NOT_FINITE}"
    if not squares:
        return None, None
    return math.sqrt(sum(squares)), None


def _others_finite(state: State) -> bool:
    """True if the floats that a distance does not cover are finite: statistics and buffers."""
    return all(map(finite, state.float_slices(("statistic", "buffer"))))
