"""How far an upload may be from what was sent: a multiple of how far uploads usually are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from statistics import median_low
from typing import Literal, NamedTuple

import torch
from pydantic import Field, field_validator

from fedssl.layout import PARAMETERS, Layout
from fedssl.settings import Settings
from fedssl.tree import State, Tree, Value

FIRST = 5  # uploads that wait for each other where no earlier round says what is usual
FARTHEST = torch.finfo(torch.float32).max  # whatever is usual; with no bound at all, farther ones pass too


class GuardSettings(Settings):
    """What an upload must satisfy beside being what the algorithm expects and finite."""

    norm_bound: float = Field(10.0, ge=0)  # the most an update's norm may be, in medians over a round's clients; 0: any
    usual: Literal["largest", "last"] = "largest"  # which round's median: of all so far the largest, or the last one's
    clip: bool = False  # scale an update above the bound down to it; otherwise its client is dropped

    @field_validator("norm_bound")
    @classmethod
    def _above_the_median(cls, bound: float) -> float:
        if 0 < bound < 1:
            raise ValueError("must be at least 1, or half of the clients are dropped; 0 is no bound")
        return bound


NONE = GuardSettings(norm_bound=0)


class Usual(NamedTuple):
    """What uploads of a round were like: medians over those that counted."""

    norm: float  # the distance between the model sent and the model returned
    images: int  # that a client holds
    rate: float  # the learning rate of the round
    recent: Sequence[Sequence[float]] = ()  # (norm, images) of the last few that counted, of whichever rounds

    def norm_at(self, rate: float, images: int, most: float) -> float:
        """What is usual for a client of so many images at another rate. A client makes steps in proportion to its
        images, and a step is as long as the rate, so both may lead it as much farther, though by its images, which it
        counts itself, no more than `most` times; with fewer, or at a lower rate, it may still go as far as the others,
        since less than that does not hurt them."""
        return self.norm * min(max(1.0, images / self.images), most) * max(1.0, rate / self.rate)


class Bound:
    """How far uploads may go, round by round.

    What is usual is the median of a round's uploads, with those of earlier rounds where there are fewer than five, and
    of the rounds so far the largest, unless the last is asked for. Honest ways differ a hundredfold between a model's
    first round and its last, and where some clients or peers come late, first rounds come late too; an update that was
    usual once is none that ruins a model.

    The first round is compared with itself: its first uploads wait until five are there, and their median decides for
    all. So one that comes first is judged as any other, and no more than five are ever held. Medians are the lower
    ones: of two clients the one that went less far is the usual one.
    """

    def __init__(
        self,
        settings: GuardSettings = NONE,
        rate: Callable[[int], float] = lambda round: 1.0,
        usual: Usual | None = None,
    ) -> None:
        self.settings, self.usual, self._rate_of = settings, usual, rate
        self.begin(0)

    def begin(self, round: int) -> None:
        self._rate, self._reference = self._rate_of(round), self.usual
        self._counted: list[tuple[float, int]] = []

    @property
    def waits(self) -> bool:
        """Whether nothing says yet what is usual, and somebody wants to know."""
        return self.settings.norm_bound > 0 and self.usual is None

    def compare(self, first: Sequence[tuple[float, int]]) -> None:
        """The round is compared with some uploads of its own: (norm, images) of each."""
        self._reference = self._median([one for one in first if math.isfinite(one[0])])

    def _median(self, those: Sequence[Sequence[float]]) -> Usual | None:
        norm = median_low([norm for norm, _ in those]) if those else 0.0
        # If nobody moved, that says nothing of how far one may go.
        return Usual(norm, int(median_low([images for _, images in those])), self._rate) if norm > 0 else None

    def limit(self, images: int) -> float:
        """How far an upload of a client with so many images may be."""
        if not self.settings.norm_bound:
            return math.inf
        most = self.settings.norm_bound
        usual = self._reference and self._reference.norm_at(self._rate, images, most)
        return min(most * usual, FARTHEST) if usual else FARTHEST

    def within(
        self, sent: Tree, upload: Tree, moved: float, images: int
    ) -> tuple[Tree | None, float | None, str | None]:
        """An upload that went as far as `moved`, the share of its update that is left if not all of it is, and why it
        is dropped if it is."""
        limit, share = self.limit(images), None
        if moved > limit:
            exact = moved if math.isfinite(moved) else distance(sent, upload)
            if not self.settings.clip or not math.isfinite(exact):
                return None, None, self._reason(moved, limit)
            share, moved = limit / exact, limit
            upload = clipped(sent, upload, share)
        self._counted.append((moved, images))
        return upload, share, None

    def end(self) -> None:
        """What counted in this round is what the next ones are compared with."""
        before = self.usual.recent if self.usual else ()
        window = [*before, *self._counted][-max(FIRST, len(self._counted)) :]  # one client alone sets no measure
        new = self._median(window) or self.usual
        if new is not None and self.usual is not None and self.settings.usual == "largest":
            new = max(new, self.usual, key=lambda usual: usual.norm)
        self.usual = new and new._replace(recent=window[-FIRST:])

    def _reason(self, moved: float, limit: float) -> str:
        if limit == FARTHEST:
            return "the norm of its update is more than float32 can hold"
        times = f"{self.settings.norm_bound:g} times what is usual"
        return f"the norm of its update is {moved:.3g}, more than {limit:.3g}: {times} (guard.norm_bound)"


def distance(sent: Tree, upload: Tree) -> float:
    """How far an upload went, where that is too far for sums of squares in float32."""
    norms = [0.0]
    for _, start, back in _models(sent, upload):
        here = back.layout.pick(None, PARAMETERS)
        way = back.restricted(here).floats - start.restricted(here).floats
        norms.append(torch.linalg.vector_norm(way, dtype=torch.float64).item())
    return math.hypot(*norms)


def clipped(sent: Tree, upload: Tree, share: float) -> dict[str, Value]:
    """An upload with its models brought back along their way, running statistics too; counters are as they came."""
    near = dict(upload)
    for key, start, back in _models(sent, upload):
        common = _floats_of(back.layout, start.layout)
        near[key] = back.overwritten(start.restricted(common).lerp(back.restricted(common), share))
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
