"""What an upload must satisfy before anybody averages it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fedssl.algorithm import Rows, Spec
from fedssl.layout import Layout
from fedssl.train import Metrics
from fedssl.tree import State, Tree, Value, nbytes

MOST_IMAGES = 10**8  # no client holds as many; more is a lie that would decide the mean


class Reply(NamedTuple):
    """What came back from one client: an upload, or the reason why there is none."""

    client: str
    images: int | float | str  # how many it holds, as it states it
    upload: Tree | None
    metrics: Metrics | None
    error: str | None = None


class Report(NamedTuple):
    """One client's line in the rounds log."""

    client: str
    dropped: str | None
    metrics: Metrics | None = None
    bytes_down: int = 0
    bytes_up: int = 0
    divergence: float | None = None  # L2 between the model sent and the model returned, over parameters
    moved_on: bool = False  # dropped after training: what the client remembers is a round ahead


class Guard:
    """Lets sound uploads through, lazily and in order, and keeps a report of every client."""

    def __init__(self, wire: Mapping[str, Spec], message: Callable[[str], Tree]) -> None:
        self.wire, self.message = wire, message
        self.reports: list[Report] = []

    def __call__(self, replies: Iterable[Reply]) -> Iterator[tuple[str, int, Tree]]:
        for reply in replies:
            message = self.message(reply.client)
            reason = reply.error or self.fault(reply)
            if reason is not None or reply.upload is None:
                moved_on = reply.upload is not None
                self.reports.append(
                    Report(reply.client, reason or "no upload", None, nbytes(message), 0, None, moved_on)
                )
                continue
            down, up = nbytes(message), nbytes(reply.upload)
            moved = divergence(message, reply.upload)
            self.reports.append(Report(reply.client, None, reply.metrics, down, up, moved))
            yield reply.client, int(reply.images), reply.upload

    def fault(self, reply: Reply) -> str | None:
        """Why this upload must not count; None if it is sound."""
        images, upload = reply.images, reply.upload or {}
        if isinstance(images, bool) or not isinstance(images, int) or not 0 < images <= MOST_IMAGES:
            return f"claims {images!r} images"
        if upload.keys() != self.wire.keys():
            odd = sorted(upload.keys() ^ self.wire.keys())
            return f'key "{odd[0]}" is {"not expected" if odd[0] in upload else "missing"}'
        return next((f"{key}: {why}" for key, spec in self.wire.items() if (why := _fault(upload[key], spec))), None)


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
    if isinstance(value, bool) or not isinstance(value, spec):
        return f"is not {spec.__name__}"
    return None if value == value and abs(value) != float("inf") else "is not finite"


def _rows_fault(state: State) -> str | None:
    layout = state.layout
    if state.floats.dtype != torch.float32 or state.floats.shape != (layout.floats,):
        return "its float row is not what its layout says"
    if state.counts.dtype != torch.int64 or state.counts.shape != (layout.counts,):
        return "its counter row is not what its layout says"
    # A sum of absolute values is finite exactly when every term is, short of an overflow nobody wants averaged.
    return None if bool(torch.isfinite(state.floats.abs().sum())) else "is not finite"


def divergence(message: Tree, upload: Tree) -> float | None:
    """L2 distance between the models that went out and came back under the same keys; None where there are none."""
    total = [
        returned.distance(sent, returned.layout.parts).item() ** 2
        for key, returned in upload.items()
        if isinstance(returned, State) and isinstance(sent := message.get(key), State)
    ]
    return sum(total) ** 0.5 if total else None
