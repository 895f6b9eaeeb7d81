"""Where a model's tensors lie in its flat rows, and in which role."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
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
        return Layout(
            tuple(
                entry
                for entry in self.entries
                if (parts is None or entry.part in parts) and (roles is None or entry.role in roles)
            )
        )

    def without_prefix(self, prefix: str) -> Layout:
        """The same layout with `prefix.` taken off every name that has it."""
        return Layout(tuple(entry._replace(name=entry.name.removeprefix(prefix + ".")) for entry in self.entries))

    def with_prefix(self, prefix: str) -> Layout:
        return Layout(tuple(entry._replace(name=f"{prefix}.{entry.name}") for entry in self.entries))

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
