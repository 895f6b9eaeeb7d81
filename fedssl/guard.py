"""What an upload must satisfy before anybody averages it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from fedssl.algorithm import Heard, Rows, Spec
from fedssl.layout import Layout
from fedssl.rows import finite
from fedssl.train import Metrics
from fedssl.tree import State, Tree, Value, nbytes

NOTHING: Mapping[str, float] = MappingProxyType({})
MOST_NOTES = 20
MOST_IMAGES = 10**8  # no client holds as many; more is a lie that would decide the mean
MOST_NUMBER = 1e38  # that a client may tell of itself: finite, and so is its product with a count
MOST_TEXT = 200  # characters of a stranger's, in a log


def plain(text: object, most: int = MOST_TEXT) -> str:
    """What a stranger wrote, fit for a log and a terminal: short, on one line, and without control characters."""
    words = str(text)
    clean = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in words[:most])
    return clean[:most] + ("…" if len(words) > most or len(clean) > most else "")


class Reply(NamedTuple):
    """What came back from one client: an upload, or the reason why there is none."""

    client: str
    images: int | float | str  # how many it holds, as it states it
    upload: Tree | None
    metrics: Metrics | None
    error: str | None = None
    round: int | None = None  # that it answers, counted from 0; None: the runtime knows that it is this one
    notes: Mapping[str, float] = NOTHING  # what its algorithm has to say of the round


class Report(NamedTuple):
    """One client's line in the rounds log."""

    client: str
    dropped: str | None
    metrics: Metrics | None = None
    bytes_down: int = 0
    bytes_up: int = 0
    divergence: float | None = None  # L2 between the model sent and the model returned, over parameters
    moved_on: bool = False  # dropped after training: what the client remembers is a round ahead
    notes: Mapping[str, float] = NOTHING


class Guard:
    """Lets sound uploads through, lazily and in order, and keeps a report of every client.

    `clients` are those who take part in the round; `sent` has the messages on their way, and each is taken out when
    it is answered.
    """

    def __init__(
        self, wire: Mapping[str, Spec], round: int, clients: Iterable[str], sent: MutableMapping[str, Tree]
    ) -> None:
        self.wire, self.round, self.sent = wire, round, sent
        self.reports: list[Report] = []
        self._awaited = set(clients)

    def __call__(self, replies: Iterable[Reply]) -> Iterator[Heard]:
        """Every client that was asked and has answered, once."""
        return filter(None, map(self._hear, replies))  # no name holds an upload while the next one is made

    def _hear(self, reply: Reply) -> Heard | None:
        if (stray := self.stray(reply)) is not None:
            self.reports.append(Report(reply.client, plain(stray)))
            return None
        self._awaited.remove(reply.client)
        report = self._judged(reply, self.sent.pop(reply.client, {}))
        self.reports.append(report)
        return Heard(reply.client, 0, None) if report.dropped else Heard(reply.client, int(reply.images), reply.upload)

    def _judged(self, reply: Reply, message: Tree) -> Report:
        reason, moved = reply.error or fault(reply, self.wire), None
        if reason is None and reply.upload is not None:
            moved, reason = journey(message, reply.upload)
        if reason is not None or reply.upload is None:
            moved_on = reply.upload is not None
            return Report(reply.client, plain(reason or "no upload"), None, nbytes(message), 0, None, moved_on)
        up, notes = nbytes(reply.upload), legible(reply.notes)
        return Report(reply.client, None, reply.metrics, nbytes(message), up, moved, notes=notes)

    def stray(self, reply: Reply) -> str | None:
        """Why nobody waits for this reply; None if it answers a question of this round."""
        if reply.round is not None and reply.round != self.round:
            return f"answers round {reply.round + 1} in round {self.round + 1}"
        return None if reply.client in self._awaited else "was not asked, or has answered already"


def fault(reply: Reply, wire: Mapping[str, Spec]) -> str | None:
    """Why this upload must not count; None if it is what the wire says. Whether models are finite is seen later."""
    images, upload = reply.images, reply.upload or {}
    if isinstance(images, bool) or not isinstance(images, int) or not 0 < images <= MOST_IMAGES:
        return f"claims {images!r} images"
    if upload.keys() != wire.keys():
        odd = sorted(upload.keys() ^ wire.keys())
        return f'key "{odd[0]}" is {"not expected" if odd[0] in upload else "missing"}'
    return next((f"{key}: {why}" for key, spec in wire.items() if (why := _fault(upload[key], spec))), None)


def unsound(reply: Reply, wire: Mapping[str, Spec]) -> str | None:
    """All that the guard would drop this reply for, for whoever must know before the guard sees it."""
    if reply.error is not None or reply.upload is None:
        return reply.error or "no upload"
    return fault(reply, wire) or journey({}, reply.upload)[1]


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


def legible(notes: Mapping[str, float]) -> dict[str, float]:
    """Those of a client's notes that a log can hold: a few finite numbers."""
    numbers = {key: note for key, note in notes.items() if isinstance(note, int | float) and abs(note) <= MOST_NUMBER}
    return {plain(key, 40): numbers[key] for key in list(numbers)[:MOST_NOTES]}


def _rows_fault(state: State) -> str | None:
    layout = state.layout
    if state.floats.dtype != torch.float32 or state.floats.shape != (layout.floats,):
        return "its float row is not what its layout says"
    if state.counts.dtype != torch.int64 or state.counts.shape != (layout.counts,):
        return "its counter row is not what its layout says"
    return None


def journey(message: Tree, upload: Tree) -> tuple[float | None, str | None]:
    """How far the models that came back are from those sent under the same keys, over parameters (None where there
    are none); and what is wrong with them. One pass does both: a distance is finite only if its terms are."""
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
    moved = math.sqrt(sum(squares)) if squares else math.inf
    return (moved if math.isfinite(moved) else None), None  # None too where it is too far for float32 to say
