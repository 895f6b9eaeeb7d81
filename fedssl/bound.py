"""Bound how far an upload may move from the model that was sent, in multiples of a typical upload's distance."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from statistics import median_low
from typing import Literal, NamedTuple

import torch
from pydantic import Field, field_validator

from fedssl.layout import PARAMETERS, Layout
from fedssl.running_statistics import statistics_shift
from fedssl.settings import Settings
from fedssl.tree import State, Tree, Value

FIRST = 5  # uploads that wait for each other where no earlier round gives a reference
FARTHEST = torch.finfo(torch.float32).max  # applies without a reference; with no bound at all, larger norms pass too
INFLUENCE = 0.1  # of a typical update: a client that cannot move the mean by more than this may go farther
SHIFT_FLOOR = 1.5  # standard deviations by which training may always move running statistics
UNTRAINED_SHIFT_FLOOR = 10.0  # the same from initial statistics, for clients whose number of images is not known


class GuardSettings(Settings):
    """What an upload must satisfy beside being what the algorithm expects and finite."""

    norm_bound: float = Field(10.0, ge=0)  # the most an update's norm may be, in medians over a round's clients; 0: any
    usual: Literal["largest", "last"] = "largest"  # which round's median: of all so far the largest, or the last one's
    clip: bool = False  # scale an update above the bound down to it; otherwise its client is dropped
    statistics_bound: float = Field(5.0, ge=0)  # the most that running statistics may shift, in medians; 0: any
    min_uploads: int = Field(2, ge=1)  # valid uploads that a server needs to merge; with fewer the round fails
    max_share: float | None = Field(None, gt=0, le=1)  # one client's largest share of all asked; 0.5 on Flower, else 1

    @field_validator("norm_bound", "statistics_bound")
    @classmethod
    def _above_the_median(cls, bound: float) -> float:
        if 0 < bound < 1:
            raise ValueError("must be at least 1, or half of the clients are dropped; 0 is no bound")
        return bound


NONE = GuardSettings(norm_bound=0, statistics_bound=0)


class Measured(NamedTuple):
    """What the bound compares uploads by."""

    norm: float  # the distance over parameters between the models sent and returned; infinite: above float32's range
    images: int = 0  # that the client holds, where this process counted them; 0: not known
    shift: float | None = None  # of running statistics, in standard deviations; None: there are none
    untrained: bool = False  # whether the statistics that were sent are those of a new model


class Usual(NamedTuple):
    """The reference of later rounds: medians over the uploads that counted."""

    norm: float
    images: int
    rate: float  # the learning rate of the round
    recent: Sequence[Sequence[float]] = ()  # (norm, images) of the last few that counted, of whichever rounds
    shift: float | None = None  # None: not known, as in checkpoints of earlier versions
    recent_shifts: Sequence[float] = ()

    def norm_at(self, rate: float, images: int, most: float) -> float:
        """The typical norm for a client of this many images at another learning rate.

        A client makes steps in proportion to its images, and a step is as long as the rate, so both may lead it
        farther: by its images at most `most` times, and only where they are known. With fewer images or at a lower rate
        it may still go as far as the others.
        """
        return self.norm * self.images_ratio(images, most) * max(1.0, rate / self.rate)

    def images_ratio(self, images: int, most: float) -> float:
        """How many times the images of the median client these are, from 1 to `most`; 1 where they are not known."""
        return min(max(1.0, images / self.images), most) if images and self.images else 1.0


class Bound:
    """How far uploads may go, round by round.

    The reference is the median of a round's uploads, with those of earlier rounds where there are fewer than five. Of
    all rounds so far the largest median applies, unless `usual = "last"`: honest distances differ a hundredfold between
    a model's first round and its last, and where some clients or peers come late, first rounds come late too. An update
    no larger than an earlier typical one is safe. Within a round the reference grows with the median of the uploads
    accepted so far.

    The first round is compared with itself: its first uploads wait until five are there, and their median decides. So
    one that comes first is judged as any other, and no more than five are ever held. Medians are the lower ones: of two
    clients the one that went less far is the typical one.

    Running statistics have a separate bound. Their shifts need not decrease over rounds, so the reference is the larger
    of the earlier median and this round's median. An upload above the limit is held until five uploads of the round
    have arrived.

    A client with a small share of the mean may exceed the bound as long as it moves the mean by at most a tenth of a
    typical update: among thousands of clients with a few images each, norms have long tails.
    """

    def __init__(
        self,
        settings: GuardSettings = NONE,
        rate: Callable[[int], float] = lambda round: 1.0,
        usual: Usual | None = None,
    ) -> None:
        self.settings = settings
        self.usual = usual
        self._rate_of = rate
        self.begin(0)

    def begin(self, round: int) -> None:
        self._rate = self._rate_of(round)
        self._reference = self.usual
        self._counted: list[Measured] = []
        self._norms: list[float] = []  # of those counted, in ascending order
        self._shifts: list[float] = []  # of all seen so far, in ascending order

    @property
    def waits(self) -> bool:
        """Whether the first uploads of this round must wait for each other."""
        return self.usual is None and bool(self.settings.norm_bound or self.settings.statistics_bound)

    def record_shift(self, measured: Measured) -> None:
        """Record the shift of an upload before it is judged."""
        if measured.shift is not None:
            insort(self._shifts, measured.shift)

    def must_wait(self, measured: Measured) -> bool:
        """True if an upload must be held: its shift exceeds the limit so far, or there is none yet, and fewer than five
        uploads of this round have arrived."""
        if measured.shift is None or len(self._shifts) >= FIRST or not self.settings.statistics_bound:
            return False
        if self._typical_shift is None:
            return True
        return not measured.shift <= self.shift_limit(measured.images, measured.untrained)

    def compare(self, first: Sequence[Measured]) -> None:
        """Take the first uploads of a round as its reference."""
        self._reference = self._median([one for one in first if math.isfinite(one.norm)])

    def _median(self, those: Sequence[Measured]) -> Usual | None:
        norm = median_low([one.norm for one in those]) if those else 0.0
        if norm <= 0:  # no client moved, which gives no reference
            return None
        images = int(median_low([one.images for one in those]))
        shifts = [one.shift for one in those if one.shift is not None]
        return Usual(norm, images, self._rate, shift=median_low(shifts) if shifts else None)

    def limit(self, images: int = 0, share: float = 1.0) -> float:
        """The largest norm for a client of this many images (0: not known) and this share of the mean."""
        if not self.settings.norm_bound:
            return math.inf
        if self._reference is None:
            return FARTHEST
        most = self.settings.norm_bound
        typical = self._reference.norm_at(self._rate, images, most)
        if len(self._norms) >= FIRST:
            typical = max(typical, self._norms[(len(self._norms) - 1) // 2])
        return min(typical * max(most, INFLUENCE / share), FARTHEST)

    def shift_limit(self, images: int = 0, untrained: bool = False) -> float:
        """The largest shift of running statistics, for a client of this many images (0: not known)."""
        typical = self._typical_shift
        if not self.settings.statistics_bound or typical is None:
            return math.inf
        if self._reference is not None:
            typical *= self._reference.images_ratio(images, self.settings.norm_bound or math.inf)
        floor = UNTRAINED_SHIFT_FLOOR if untrained and not images else SHIFT_FLOOR
        return max(self.settings.statistics_bound * typical, floor)

    @property
    def _typical_shift(self) -> float | None:
        """The larger of the earlier rounds' median and this round's; None where neither is known."""
        earlier = None if self._reference is None else self._reference.shift
        here = self._shifts[(len(self._shifts) - 1) // 2] if len(self._shifts) > 1 else None  # one is no reference
        return max((shift for shift in (earlier, here) if shift is not None), default=None)

    def within(
        self, sent: Tree, upload: Tree, measured: Measured, share: float = 1.0
    ) -> tuple[Tree | None, float | None, str | None]:
        """The upload, the fraction of its update that is left if it was clipped, and the reason if it is dropped."""
        limit = self.limit(measured.images, share)
        kept = None
        if measured.norm > limit:
            exact = measured.norm if math.isfinite(measured.norm) else distance(sent, upload)
            if not self.settings.clip or not math.isfinite(exact):
                return None, None, self._norm_reason(measured.norm, limit)
            kept = limit / exact
            upload = clipped(sent, upload, kept)
            measured = measured._replace(norm=limit, shift=shift_of(sent, upload))
        if measured.shift is not None:
            most = self.shift_limit(measured.images, measured.untrained)
            if not measured.shift <= most:
                return None, None, self._shift_reason(measured.shift, most)
        self._counted.append(measured)
        insort(self._norms, measured.norm)
        return upload, kept, None

    def end(self) -> None:
        """Compare the next rounds with what counted in this one."""
        before = self.usual or Usual(0.0, 0, 1.0)
        earlier = [Measured(norm, int(images)) for norm, images in before.recent]
        window = [*earlier, *self._counted][-max(FIRST, len(self._counted)) :]  # one client alone sets no reference
        shifts = [one.shift for one in self._counted if one.shift is not None]
        recent_shifts = [*before.recent_shifts, *shifts][-max(FIRST, len(shifts)) :]
        shift = median_low(recent_shifts) if recent_shifts else before.shift
        new = self._median(window) or self.usual
        if new is not None and self.usual is not None and self.settings.usual == "largest":
            new = max(new, self.usual, key=lambda usual: usual.norm)
            shift = max((one for one in (shift, self.usual.shift) if one is not None), default=None)
        if new is not None:
            recent = [(one.norm, one.images) for one in window[-FIRST:]]
            new = new._replace(recent=recent, shift=shift, recent_shifts=tuple(recent_shifts[-FIRST:]))
        self.usual = new

    def _norm_reason(self, norm: float, limit: float) -> str:
        if limit == FARTHEST:
            return "the norm of its update exceeds the range of float32"
        times = f"{self.settings.norm_bound:g} × the median"
        return f"the norm of its update is {norm:.3g}, above the limit of {limit:.3g}: {times} (guard.norm_bound)"

    def _shift_reason(self, shift: float, limit: float) -> str:
        return (
            f"its running statistics moved by {shift:.3g} standard deviations, above the limit of {limit:.3g} "
            "(guard.statistics_bound)"
        )


def shift_of(sent: Tree, upload: Tree) -> float | None:
    """The largest shift of running statistics over the models of an upload; None where none are sent both ways."""
    shifts = [statistics_shift(start, back) for _, start, back in _models(sent, upload)]
    return max((shift for shift in shifts if shift is not None), default=None)


def untrained(sent: Tree, upload: Tree) -> bool:
    """True if no model that was sent had seen a batch, by the counters of its BatchNorm layers."""
    return not any(bool(start.counts.any()) for _, start, _ in _models(sent, upload))


def distance(sent: Tree, upload: Tree) -> float:
    """The norm of an update, where sums of squares exceed the range of float32."""
    norms = [0.0]
    for _, start, back in _models(sent, upload):
        here = back.layout.pick(None, PARAMETERS)
        way = back.restricted(here).floats - start.restricted(here).floats
        norms.append(torch.linalg.vector_norm(way, dtype=torch.float64).item())
    return math.hypot(*norms)


def clipped(sent: Tree, upload: Tree, kept: float) -> dict[str, Value]:
    """An upload with a fraction of its update, running statistics included; counters are as they came."""
    near = dict(upload)
    for key, start, back in _models(sent, upload):
        common = _floats_of(back.layout, start.layout)
        near[key] = back.overwritten(start.restricted(common).lerp(back.restricted(common), kept))
    return near


def _models(sent: Tree, upload: Tree) -> Iterator[tuple[str, State, State]]:
    """Models that went both ways: as they were sent, and as they came back."""
    for key, back in upload.items():
        start = sent.get(key)
        if isinstance(back, State) and isinstance(start, State):
            yield key, start, back


def _floats_of(layout: Layout, other: Layout) -> Layout:
    """The entries of a layout that another has too, but for counters."""
    return Layout(tuple(entry for entry in layout.entries if entry.role != "counter" and entry.name in other.offsets))
