"""What an upload must satisfy before anybody averages it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

from fedssl.algorithm import Heard, Spec
from fedssl.bound import FIRST, Bound, Measured, shift_of, untrained
from fedssl.running_statistics import variance_fault
from fedssl.soundness import fault, journey, sifted
from fedssl.train import Metrics
from fedssl.tree import Tree, nbytes
from fedssl.upload_weights import UploadWeights

NOTHING: Mapping[str, float] = MappingProxyType({})
MOST_NOTES = 20
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
    clipped: float | None = None  # the share of its update that counted, where that was not all of it
    rows_left_out: str | None = None  # of the features it shares, and why; its model counts


class Looked(NamedTuple):
    """A reply after a look at it by itself, and before it is compared with others."""

    reply: Reply  # without its upload if something is wrong: many may have to wait
    wrong: str | None
    stray: bool = False  # nobody waits for it
    moved_on: bool = False  # its client has trained, whatever became of its upload
    bytes_down: int = 0
    sent: Tree = MappingProxyType({})  # what its models are measured from
    moved: float | None = None  # how far they went; None: not known
    measured: Measured | None = None  # what is compared with other uploads; None: this one has no bound
    bytes_up: int = 0  # as it came
    rows_left_out: str | None = None


class Guard:
    """Lets sound uploads through, lazily and in order, and keeps a report of every client.

    `clients` are those who take part in the round; `sent` has the messages on their way, and each is taken out when
    it is answered. Updates of clients in `bounded` may be no larger than `bound` allows; `weights` has the image counts
    that clients declared, and their shares of the mean. `reference` returns models that a client's running statistics
    are compared with although they were not sent.
    """

    def __init__(
        self,
        wire: Mapping[str, Spec],
        round: int,
        clients: Iterable[str],
        sent: MutableMapping[str, Tree],
        bound: Bound | None = None,
        bounded: Collection[str] = (),
        renamed: Callable[[Tree], Mapping[str, str]] = lambda upload: {},
        weights: UploadWeights | None = None,
        reference: Callable[[str], Tree] = lambda client: {},
    ) -> None:
        self.wire = wire
        self.round = round
        self.sent = sent
        self.reports: list[Report] = []
        self._awaited = set(clients)
        self._bound = bound or Bound()
        self._bounded = bounded
        self._renamed = renamed
        self._weights = weights
        self._reference = reference

    def __call__(self, replies: Iterable[Reply]) -> Iterator[Heard]:
        """Every client that was asked and has answered, once."""
        # No name holds an upload while the next one is made.
        return filter(None, map(self._decide, self._wait(map(self._look, replies))))

    def _look(self, reply: Reply) -> Looked:
        if (stray := self.stray(reply)) is not None:
            return Looked(reply._replace(upload=None), stray, stray=True)
        self._awaited.remove(reply.client)
        message, (upload, left_out) = self.sent.pop(reply.client, {}), sifted(reply.upload or {}, self.wire)
        wrong = reply.error or fault(reply.images, upload, self.wire) or self._miscounted(reply)
        down, moved_on = nbytes(message), reply.upload is not None
        if wrong is None and reply.upload is not None:
            up, reply = nbytes(reply.upload), reply._replace(upload=upload)
            sent = {**message, **{key: message[name] for key, name in self._renamed(upload).items()}}
            moved, wrong = journey(sent, upload)
            wrong = wrong or variance_fault(upload)
            if wrong is None:
                measured = self._measure(reply.client, sent, upload, moved)
                return Looked(reply, None, False, moved_on, down, sent, moved, measured, up, left_out)
        return Looked(reply._replace(upload=None), wrong or "no upload", False, moved_on, down)

    def _miscounted(self, reply: Reply) -> str | None:
        declared = None if self._weights is None else self._weights.declared.get(reply.client)
        if declared is None or int(reply.images) == declared:
            return None
        return f"claims {reply.images} images, but declared {declared} when it joined"

    def _measure(self, client: str, sent: Tree, upload: Tree, moved: float | None) -> Measured | None:
        if moved is None or client not in self._bounded:
            return None
        images = 0 if self._weights is None else self._weights.verified_images(client)
        compared = {**self._reference(client), **sent}
        return Measured(moved, images, shift_of(compared, upload), untrained(compared, upload))

    def _wait(self, looked: Iterator[Looked]) -> Iterator[Looked]:
        """All of them in their order; the first few of a round together, where only they give a reference."""
        held: deque[Looked] = deque()
        if self._bound.waits and self._bounded:
            sound_ones = 0
            while sound_ones < FIRST and _take(held, looked):
                sound_ones += held[-1].wrong is None
                self._record_shift(held[-1])
            self._bound.compare([one.measured for one in held if one.measured is not None])
        while held:
            yield held.popleft()
        while _take(held, looked):
            self._record_shift(held[-1])
            if not any(one.measured is not None and self._bound.must_wait(one.measured) for one in held):
                while held:
                    yield held.popleft()
        while held:
            yield held.popleft()

    def _record_shift(self, looked: Looked) -> None:
        if looked.measured is not None:
            self._bound.record_shift(looked.measured)

    def _decide(self, looked: Looked) -> Heard | None:
        reply = looked.reply
        wrong = looked.wrong
        moved = looked.moved
        upload = reply.upload
        kept = None
        if wrong is None and upload is not None and looked.measured is not None:
            share = 1.0 if self._weights is None else self._weights.share(reply.client)
            upload, kept, wrong = self._bound.within(looked.sent, upload, looked.measured, share)
        if wrong is not None or upload is None:
            why = plain(wrong or "no upload")
            self.reports.append(Report(reply.client, why, None, looked.bytes_down, moved_on=looked.moved_on))
            return None if looked.stray else Heard(reply.client, 0, None)
        told = moved if moved is not None and math.isfinite(moved) else None  # the log has no word for infinity
        left_out = None if looked.rows_left_out is None else plain(looked.rows_left_out)
        numbers = (looked.bytes_down, looked.bytes_up, told, False, legible(reply.notes), kept, left_out)
        self.reports.append(Report(reply.client, None, reply.metrics, *numbers))
        return Heard(reply.client, int(reply.images), upload)

    def reject(self, reason: str, clients: Collection[str] | None = None) -> None:
        """Mark uploads that were accepted as dropped after all: those of `clients`, or every one."""
        self.reports = [
            report._replace(dropped=reason, metrics=None, moved_on=True, notes=NOTHING)
            if report.dropped is None and (clients is None or report.client in clients)
            else report
            for report in self.reports
        ]

    def stray(self, reply: Reply) -> str | None:
        """Why nobody waits for this reply; None if it answers a question of this round."""
        if reply.round is not None and reply.round != self.round:
            return f"answers round {reply.round + 1} in round {self.round + 1}"
        return None if reply.client in self._awaited else "was not asked, or has answered already"


def _take(held: deque[Looked], looked: Iterator[Looked]) -> bool:
    """Hold one more; False: there is none. No name is left with it."""
    before = len(held)
    held.extend(islice(looked, 1))
    return len(held) > before


def unsound(reply: Reply, wire: Mapping[str, Spec]) -> str | None:
    """Why the guard would drop this reply without comparing it with others; None if it would not."""
    if reply.error is not None or reply.upload is None:
        return reply.error or "no upload"
    upload, _ = sifted(reply.upload, wire)
    return fault(reply.images, upload, wire) or journey({}, upload)[1]


def legible(notes: Mapping[str, float]) -> dict[str, float]:
    """Those of a client's notes that a log can hold: a few finite numbers."""
    numbers = {key: note for key, note in notes.items() if isinstance(note, int | float) and abs(note) <= MOST_NUMBER}
    return {plain(key, 40): numbers[key] for key in list(numbers)[:MOST_NOTES]}
