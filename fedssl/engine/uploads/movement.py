"""Measure and clip the updates of an upload: the way from the models sent to those returned."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch

from fedssl.core.devices.precision import threads
from fedssl.core.state.layout import PARAMETERS, Layout
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, Value
from fedssl.engine.uploads.norm_bound import Movement, NormBound
from fedssl.engine.uploads.running_statistics import statistics_shift


class Bounded(NamedTuple):
    """An upload after the bound was applied to it."""

    upload: Tree | None  # None: it is dropped
    movement: Movement
    kept: float | None = None  # the fraction of its update that is left, if it was clipped
    error: str | None = None


def apply_bound(
    bound: NormBound, sent: Tree, upload: Tree, movement: Movement, share: float
) -> Bounded:
    """Drop or clip an upload that moved too far; `share` is its client's share of the mean."""
    limit = bound.norm_limit(movement.images, share)
    kept = None
    if movement.norm > limit:
        norm = movement.norm
        if not math.isfinite(norm):
            norm = update_norm_float64(sent, upload)
        if not bound.settings.clip or not math.isfinite(norm):
            return Bounded(None, movement, error=bound.norm_error(movement.norm, limit))
        kept = limit / norm
        upload = clip_update(sent, upload, kept)
        movement = movement._replace(norm=limit, shift=largest_shift(sent, upload))
    error = bound.shift_error(movement)
    if error is not None:
        return Bounded(None, movement, error=error)
    return Bounded(upload, movement, kept)


def largest_shift(sent: Tree, upload: Tree) -> float | None:
    """Return the largest shift of running statistics over an upload's models; None without any."""
    shifts = []
    for _, start, back in models_both_ways(sent, upload):
        shift = statistics_shift(start, back)
        if shift is not None:
            shifts.append(shift)
    return max(shifts, default=None)


def is_untrained(sent: Tree, upload: Tree) -> bool:
    """True if no model that was sent had seen a batch, by the counters of its BatchNorm layers."""
    for _, start, _ in models_both_ways(sent, upload):
        if bool(start.counts.any()):
            return False
    return True


def update_norm_float64(sent: Tree, upload: Tree) -> float:
    """Return the norm of an update whose sum of squares exceeds the range of float32."""
    norms = [0.0]
    for _, start, back in models_both_ways(sent, upload):
        parameters = back.layout.pick(None, PARAMETERS)
        update = back.restricted(parameters).floats - start.restricted(parameters).floats
        with threads(1):  # the last bits depend on their number
            norms.append(torch.linalg.vector_norm(update, dtype=torch.float64).item())
    return math.hypot(*norms)


def clip_update(sent: Tree, upload: Tree, kept: float) -> dict[str, Value]:
    """Return an upload with a fraction of its update, running statistics included.

    Counters are left as they came.
    """
    clipped = dict(upload)
    for key, start, back in models_both_ways(sent, upload):
        common = _common_floats(back.layout, start.layout)
        near = start.restricted(common).lerp(back.restricted(common), kept)
        clipped[key] = back.overwritten(near)
    return clipped


def models_both_ways(sent: Tree, upload: Tree) -> Iterator[tuple[str, State, State]]:
    """Yield the models that were sent and returned under the same key."""
    for key, back in upload.items():
        start = sent.get(key)
        if isinstance(back, State) and isinstance(start, State):
            yield key, start, back


def _common_floats(layout: Layout, other: Layout) -> Layout:
    """Return the entries of a layout that another has too, without counters."""
    common = []
    for entry in layout.entries:
        if entry.role != "counter" and entry.name in other.offsets:
            common.append(entry)
    return Layout(tuple(common))
