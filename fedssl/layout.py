"""Where a model's tensors lie in its flat rows, and in which role."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple

Role = Literal["weight", "norm", "statistic", "buffer", "counter"]
PARAMETERS: tuple[Role, ...] = ("weight", "norm")
_ORDER: tuple[Role, ...] = ("weight", "norm", "statistic", "buffer", "counter")


class Entry(NamedTuple):
    """One tensor of a model: `name` is its state_dict key, the first word of which is its part."""

    name: str
    shape: tuple[int, ...]
    role: Role

    @property
    def part(self) -> str:
        return self.name.partition(".")[0]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def group(self) -> int:
        """Parameters first, so that an optimizer sees one slice; then statistics, buffers, counters."""
        return max(0, _ORDER.index(self.role) - 1)


@dataclass(frozen=True)
class Layout:
    """Where each entry lies: floats in one row, integer counters in another, grouped by role, then by part."""

    entries: tuple[Entry, ...]

    def __hash__(self) -> int:
        return self._hash  # layouts are keys of the caches below, several times a client and round

    @cached_property
    def _hash(self) -> int:
        return hash(self.entries)

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Layout:
        return cls(tuple(sorted(entries, key=lambda entry: entry.group)))  # stable: keeps the model's order

    @cached_property
    def offsets(self) -> dict[str, int]:
        ends = {True: 0, False: 0}
        offsets = {}
        for entry in self.entries:
            integer = entry.role == "counter"
            offsets[entry.name] = ends[integer]
            ends[integer] += entry.size
        return offsets

    @cached_property
    def floats(self) -> int:
        return sum(entry.size for entry in self.entries if entry.role != "counter")

    @cached_property
    def counts(self) -> int:
        return sum(entry.size for entry in self.entries if entry.role == "counter")

    @cached_property
    def parts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(entry.part for entry in self.entries))

    def pick(self, parts: Collection[str] | None = None, roles: Collection[Role] | None = None) -> Layout:
        """The entries of some parts, in some roles; None: of all."""
        return _picked(self, None if parts is None else frozenset(parts), None if roles is None else frozenset(roles))

    def without_prefix(self, prefix: str) -> Layout:
        """The same layout with `prefix.` taken off every name that has it."""
        return _renamed(self, prefix + ".", "")

    def with_prefix(self, prefix: str) -> Layout:
        return _renamed(self, "", prefix + ".")

    def first_difference(self, other: Layout) -> str | None:
        """A sentence naming the first entry in which two layouts differ; None if they are equal."""
        if self == other:
            return None
        mine = {entry.name: entry for entry in self.entries}
        theirs = {entry.name: entry for entry in other.entries}
        for name in dict.fromkeys([*mine, *theirs]):
            if name not in theirs:
                return f"{name} is missing"
            if name not in mine:
                return f"{name} is not expected"
            if mine[name].shape != theirs[name].shape:
                return f"{name} has shape {theirs[name].shape}, expected {mine[name].shape}"
            if mine[name].role != theirs[name].role:
                return f"{name} is a {theirs[name].role}, expected a {mine[name].role}"
        return "the entries are in another order"


@lru_cache(maxsize=256)
def _picked(layout: Layout, parts: frozenset[str] | None, roles: frozenset[Role] | None) -> Layout:
    return Layout(
        tuple(
            entry
            for entry in layout.entries
            if (parts is None or entry.part in parts) and (roles is None or entry.role in roles)
        )
    )


@lru_cache(maxsize=256)
def _renamed(layout: Layout, old: str, new: str) -> Layout:
    """With the beginning of names changed, where it is `old`."""
    return Layout(tuple(entry._replace(name=new + entry.name.removeprefix(old)) for entry in layout.entries))


@lru_cache(maxsize=256)
def runs(outer: Layout, inner: Layout) -> tuple[tuple[bool, int, int, int], ...]:
    """Contiguous stretches that two layouts share: (integer?, offset in outer, offset in inner, length)."""
    found: list[tuple[bool, int, int, int]] = []
    known = {entry.name: entry for entry in outer.entries}
    for entry in inner.entries:
        integer, size = entry.role == "counter", entry.size
        if entry.name not in known:
            raise KeyError(f"{entry.name} is not in this state")
        if known[entry.name].shape != entry.shape or (known[entry.name].role == "counter") != integer:
            raise ValueError(f"{entry.name} is {known[entry.name][1:]} in one state and {entry[1:]} in the other")
        a, b = outer.offsets[entry.name], inner.offsets[entry.name]
        for i in range(len(found) - 1, max(-1, len(found) - 3), -1):
            kind, ra, rb, length = found[i]
            if kind == integer and ra + length == a and rb + length == b:
                found[i] = (kind, ra, rb, length + size)
                break
        else:
            found.append((integer, a, b, size))
    return tuple(found)


@lru_cache(maxsize=256)
def meeting(one: Layout, other: Layout, inner: Layout) -> tuple[tuple[int, int, int], ...]:
    """Contiguous stretches of floats that hold `inner` in both layouts: (offset in one, offset in other, length)."""
    sides = [[(b, a, length) for integer, a, b, length in runs(outer, inner) if not integer] for outer in (one, other)]
    cuts = sorted({0, inner.floats, *(b for side in sides for b, _, _ in side)})
    starts = [{c: a + c - b for b, a, length in side for c in cuts if b <= c < b + length} for side in sides]
    return tuple((starts[0][c], starts[1][c], end - c) for c, end in pairwise(cuts))
