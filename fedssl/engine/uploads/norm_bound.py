"""Bound how far an upload may move from the model that was sent.

The limit is a multiple of the median over a round's uploads, with those of earlier rounds where a
round has fewer than five. By default the largest median of all rounds so far applies: honest norms
differ a hundredfold between a model's first round and its last, and some clients come late. An
update no larger than an earlier typical one is safe. Within a round the reference grows with the
median of the uploads accepted so far.

The first round is compared with itself: its first uploads wait until five have arrived, and their
median decides, so that the first to arrive is judged like any other. Medians are lower medians: of
two clients the one that moved less is typical.

Running statistics have a separate limit. Their shifts need not decrease over rounds, so their
reference is the larger of the earlier median and this round's. An upload above the limit is held
until five uploads of the round have arrived.

A client with a small share of the mean may exceed the limit as long as it moves the mean by at most
a tenth of a typical update: among thousands of clients with few images, norms have long tails.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median_low
from typing import NamedTuple

import torch

from fedssl.engine.uploads.settings import NO_BOUNDS, GuardSettings

WARMUP_UPLOADS = 5  # that wait for each other where no earlier round gives a reference
# The limit where there is no reference. Without any bound, larger norms pass too.
LARGEST_NORM = torch.finfo(torch.float32).max
# A client that cannot move the mean by more than this part of a typical update may move farther.
INFLUENCE = 0.1
# Standard deviations by which running statistics may always move from initial ones, for clients
# whose number of images is not known.
UNTRAINED_SHIFT_FLOOR = 10.0


class Movement(NamedTuple):
    """How far an upload is from the models that its client was sent."""

    norm: float  # L2 over parameters; infinite: above float32's range
    images: int = 0  # of the client, where this process counted them; 0: not known
    shift: float | None = None  # of running statistics, in standard deviations; None: no statistics
    untrained: bool = False  # the statistics that were sent are those of a new model


class TypicalUpdate(NamedTuple):
    """The reference for later rounds: medians over the uploads that counted."""

    norm: float
    images: int
    lr: float  # the learning rate of the round
    # (norm, images) of the last few uploads that counted, over rounds
    recent: Sequence[Sequence[float]] = ()
    shift: float | None = None  # None: not known, as in checkpoints of earlier versions
    recent_shifts: Sequence[float] = ()

    def norm_at(self, lr: float, images: int, max_ratio: float) -> float:
        """Return the typical norm for a client with this many images at another learning rate.

        The number of steps is proportional to the images, and the length of a step to the rate. The
        ratio of images counts up to `max_ratio`, and only where it is known. A client with fewer
        images, or at a lower rate, may move as far as the others.
        """
        return self.norm * self.images_ratio(images, max_ratio) * max(1.0, lr / self.lr)

    def images_ratio(self, images: int, max_ratio: float) -> float:
        """Return images / images of the median client, from 1 to `max_ratio`; 1 if not known."""
        if not images or not self.images:
            return 1.0
        return min(max(1.0, images / self.images), max_ratio)


@dataclass(frozen=True)
class NormBound:
    """The immutable state of the norm check in one round; `with_…` methods return the next one."""

    settings: GuardSettings = NO_BOUNDS
    lr: float = 1.0  # the learning rate of this round
    earlier: TypicalUpdate | None = None  # over the rounds before
    first: TypicalUpdate | None = (
        None  # over this round's first uploads, where there is no earlier one
    )
    accepted: tuple[Movement, ...] = ()
    norms: tuple[float, ...] = ()  # of accepted uploads, ascending
    shifts: tuple[float, ...] = ()  # of all uploads so far, ascending

    @property
    def reference(self) -> TypicalUpdate | None:
        """The typical upload that this round is compared with."""
        return self.first or self.earlier

    @property
    def needs_first_uploads(self) -> bool:
        """True if the first uploads of this round must wait for each other."""
        has_limit = self.settings.norm_bound > 0 or self.settings.statistics_bound > 0
        return has_limit and self.earlier is None

    def with_first_uploads(self, movements: Iterable[Movement]) -> NormBound:
        """Take the first uploads of a round as its reference."""
        finite = [movement for movement in movements if math.isfinite(movement.norm)]
        return replace(self, first=self._median(finite))

    def with_arrival(self, movement: Movement) -> NormBound:
        """Record the shift of an upload that has arrived, before it is judged."""
        if movement.shift is None:
            return self
        return replace(self, shifts=_inserted(self.shifts, movement.shift))

    def with_accepted(self, movement: Movement) -> NormBound:
        """Record an upload that counts."""
        return replace(
            self,
            accepted=(*self.accepted, movement),
            norms=_inserted(self.norms, movement.norm),
        )

    def must_wait(self, movement: Movement) -> bool:
        """True if an upload must be held until more uploads of the round have arrived.

        That is so while fewer than five have arrived, and its shift exceeds the limit so far or
        there is no limit yet.
        """
        if movement.shift is None or not self.settings.statistics_bound:
            return False
        if len(self.shifts) >= WARMUP_UPLOADS:
            return False
        if self._typical_shift is None:
            return True
        return self.shift_error(movement) is not None

    def norm_limit(self, images: int = 0, share: float = 1.0) -> float:
        """Return the largest norm for a client with this many images and share of the mean."""
        if not self.settings.norm_bound:
            return math.inf
        if self.reference is None:
            return LARGEST_NORM
        factor = self.settings.norm_bound
        typical = self.reference.norm_at(self.lr, images, max_ratio=factor)
        if len(self.norms) >= WARMUP_UPLOADS:
            typical = max(typical, _lower_median(self.norms))
        return min(typical * max(factor, INFLUENCE / share), LARGEST_NORM)

    def shift_limit(self, images: int = 0, untrained: bool = False) -> float:
        """Return the largest shift of running statistics for a client with this many images."""
        typical = self._typical_shift
        if not self.settings.statistics_bound or typical is None:
            return math.inf
        if self.reference is not None:
            max_ratio = self.settings.norm_bound or math.inf
            typical *= self.reference.images_ratio(images, max_ratio)
        floor = self.settings.statistics_floor
        if untrained and not images:
            floor = UNTRAINED_SHIFT_FLOOR
        return max(self.settings.statistics_bound * typical, floor)

    def norm_error(self, norm: float, limit: float) -> str:
        """Return the reason why an update with a norm above its limit is dropped."""
        if limit == LARGEST_NORM:
            return "the norm of its update exceeds the range of float32"
        return (
            f"the norm of its update is {norm:.3g}, above the limit of {limit:.3g} "
            f"(guard.norm_bound = {self.settings.norm_bound:g})"
        )

    def shift_error(self, movement: Movement) -> str | None:
        """Return why an upload is dropped for its running statistics; None if it is not."""
        if movement.shift is None:
            return None
        limit = self.shift_limit(movement.images, movement.untrained)
        if movement.shift <= limit:
            return None
        return (
            f"its running statistics moved by {movement.shift:.3g} standard deviations, above the "
            f"limit of {limit:.3g} (guard.statistics_bound)"
        )

    def next_typical(self) -> TypicalUpdate | None:
        """Return the reference for the next round, given the uploads that counted in this one."""
        before = self.earlier or TypicalUpdate(0.0, 0, 1.0)
        window = self._window(before)
        new = self._median(window) or self.earlier
        if new is None:
            return None
        shifts = [*before.recent_shifts, *_known_shifts(self.accepted)]
        accepted_shifts = len(shifts) - len(before.recent_shifts)
        shifts = shifts[-max(WARMUP_UPLOADS, accepted_shifts) :]
        shift = median_low(shifts) if shifts else before.shift
        if self.earlier is not None and self.settings.typical == "largest":
            new = max(new, self.earlier, key=lambda typical: typical.norm)
            shift = _larger(shift, self.earlier.shift)
        recent = [(movement.norm, movement.images) for movement in window[-WARMUP_UPLOADS:]]
        recent_shifts = tuple(shifts[-WARMUP_UPLOADS:])
        return new._replace(recent=recent, shift=shift, recent_shifts=recent_shifts)

    def _window(self, before: TypicalUpdate) -> list[Movement]:
        """Return the uploads of this round, with earlier ones if there are fewer than five."""
        earlier = [Movement(norm, int(images)) for norm, images in before.recent]
        size = max(WARMUP_UPLOADS, len(self.accepted))
        return [*earlier, *self.accepted][-size:]

    def _median(self, movements: Sequence[Movement]) -> TypicalUpdate | None:
        """Return the median movement; None if no client moved, which gives no reference."""
        if not movements:
            return None
        norm = median_low([movement.norm for movement in movements])
        if norm <= 0:
            return None
        images = int(median_low([movement.images for movement in movements]))
        shifts = _known_shifts(movements)
        shift = median_low(shifts) if shifts else None
        return TypicalUpdate(norm, images, self.lr, shift=shift)

    @property
    def _typical_shift(self) -> float | None:
        """The larger of the earlier rounds' median and this round's; None if neither is known."""
        earlier = None
        if self.reference is not None:
            earlier = self.reference.shift
        current = None
        if len(self.shifts) > 1:  # a single upload gives no reference
            current = _lower_median(self.shifts)
        return _larger(earlier, current)


def _known_shifts(movements: Iterable[Movement]) -> list[float]:
    return [movement.shift for movement in movements if movement.shift is not None]


def _larger(a: float | None, b: float | None) -> float | None:
    """Return the larger of two numbers that may be unknown."""
    if a is None:
        return b
    if b is None:
        return a
    return max(a, b)


def _inserted(ascending: tuple[float, ...], value: float) -> tuple[float, ...]:
    position = bisect(ascending, value)
    return (*ascending[:position], value, *ascending[position:])


def _lower_median(ascending: Sequence[float]) -> float:
    return ascending[(len(ascending) - 1) // 2]
