"""Offsets and roles of a model's tensors in its flat rows."""

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

    name: str  # e.g. backbone.conv1.weight
    shape: tuple[int, ...]  # in the module
    role: Role  # weight, norm (of a normalisation layer), statistic, buffer or counter

    @property
    def part(self) -> str:
        """The first word of the name, e.g. `backbone`."""
        return self.name.partition(".")[0]

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def is_counter(self) -> bool:
        """True if the entry is stored in the row of integers."""
        return self.role == "counter"

    @property
    def group(self) -> int:
        """Sort key of the role: parameters first, so that an optimizer updates one slice of the
        row; then statistics, buffers, counters of batches and other integers."""
        group = max(0, _ORDER.index(self.role) - 1)
        if self.is_counter and not self.name.endswith(".num_batches_tracked"):
            group += 1
        return group


class SharedSlice(NamedTuple):
    """A contiguous range of elements that two layouts store in the same order."""

    is_counter: bool
    outer: int  # offset in the outer layout
    inner: int  # offset in the inner layout
    length: int


@dataclass(frozen=True)
class Layout:
    """The order of a model's entries: floats in one row, integer counters in another, grouped by
    role, then by part."""

    entries: tuple[Entry, ...]

    def __hash__(self) -> int:
        return self._hash  # computed once: layouts are keys of the caches below

    @cached_property
    def _hash(self) -> int:
        return hash(self.entries)

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Layout:
        """Return a layout of these entries, grouped by role."""
        ordered = sorted(entries, key=lambda entry: entry.group)  # stable: keeps the model's order
        return cls(tuple(ordered))

    @cached_property
    def offsets(self) -> dict[str, int]:
        """The offset of each entry in its row, by name."""
        ends = {True: 0, False: 0}
        offsets = {}
        for entry in self.entries:
            offsets[entry.name] = ends[entry.is_counter]
            ends[entry.is_counter] += entry.size
        return offsets

    @cached_property
    def floats(self) -> int:
        """The length of the row of floats."""
        return sum(entry.size for entry in self.entries if not entry.is_counter)

    @cached_property
    def counts(self) -> int:
        """The length of the row of integers."""
        return sum(entry.size for entry in self.entries if entry.is_counter)

    @property
    def nbytes(self) -> int:
        """The size of both rows in bytes."""
        return 4 * self.floats + 8 * self.counts

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The names of the parts, each once, in order."""
        return tuple(dict.fromkeys(entry.part for entry in self.entries))

    def pick(
        self, parts: Collection[str] | None = None, roles: Collection[Role] | None = None
    ) -> Layout:
        """Return the layout of the entries of some parts, in some roles; None selects all."""
        part_set = None if parts is None else frozenset(parts)
        role_set = None if roles is None else frozenset(roles)
        return _pick(self, part_set, role_set)

    def without_prefix(self, prefix: str) -> Layout:
        """Return the same layout with `prefix.` removed from every name that has it."""
        return _replace_prefix(self, prefix + ".", "")

    def with_prefix(self, prefix: str) -> Layout:
        """Return the same layout with `prefix.` added to every name."""
        return _replace_prefix(self, "", prefix + ".")

    def first_difference(self, other: Layout) -> str | None:
        """Return a sentence naming the first entry in which two layouts differ; None if they are
        equal."""
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
def _pick(layout: Layout, parts: frozenset[str] | None, roles: frozenset[Role] | None) -> Layout:
    entries: Iterable[Entry] = layout.entries
    if parts is not None:
        entries = [entry for entry in entries if entry.part in parts]
    if roles is not None:
        entries = [entry for entry in entries if entry.role in roles]
    return Layout(tuple(entries))


@lru_cache(maxsize=256)
def _replace_prefix(layout: Layout, old: str, new: str) -> Layout:
    """Return the layout with `old` at the beginning of names replaced by `new`."""
    renamed = [entry._replace(name=new + entry.name.removeprefix(old)) for entry in layout.entries]
    return Layout(tuple(renamed))


@lru_cache(maxsize=256)
def shared_slices(outer: Layout, inner: Layout) -> tuple[SharedSlice, ...]:
    """Map the entries of `inner` to their offsets in `outer`; adjacent entries form one slice."""
    outer_entries = {entry.name: entry for entry in outer.entries}
    slices: list[SharedSlice] = []
    for entry in inner.entries:
        if entry.name not in outer_entries:
            raise KeyError(f"{entry.name} is not in this state")
        same = outer_entries[entry.name]
        if same.shape != entry.shape or same.is_counter != entry.is_counter:
            raise ValueError(
                f"{entry.name} is {same[1:]} in one state and {entry[1:]} in the other"
            )
        outer_offset = outer.offsets[entry.name]
        inner_offset = inner.offsets[entry.name]
        piece = SharedSlice(entry.is_counter, outer_offset, inner_offset, length=entry.size)
        _append_or_extend(slices, piece)
    return tuple(slices)


def _append_or_extend(slices: list[SharedSlice], piece: SharedSlice) -> None:
    """Extend one of the last two slices if `piece` continues it, else append `piece`.

    Two, because entries of floats and of counters may alternate.
    """
    for i in reversed(range(max(0, len(slices) - 2), len(slices))):
        is_counter, outer, inner, length = slices[i]
        continues = outer + length == piece.outer and inner + length == piece.inner
        if is_counter == piece.is_counter and continues:
            slices[i] = SharedSlice(is_counter, outer, inner, length=length + piece.length)
            return
    slices.append(piece)


@lru_cache(maxsize=256)
def matching_float_slices(
    one: Layout, other: Layout, inner: Layout
) -> tuple[tuple[int, int, int], ...]:
    """Return the contiguous slices of floats that hold `inner` in both layouts, each as (offset in
    one, offset in other, length)."""
    in_one = [s for s in shared_slices(one, inner) if not s.is_counter]
    in_other = [s for s in shared_slices(other, inner) if not s.is_counter]
    cuts = sorted({0, inner.floats, *(s.inner for s in [*in_one, *in_other])})
    slices = []
    for start, end in pairwise(cuts):
        offset_in_one = _outer_offset(in_one, start)
        offset_in_other = _outer_offset(in_other, start)
        slices.append((offset_in_one, offset_in_other, end - start))
    return tuple(slices)


def _outer_offset(slices: Iterable[SharedSlice], inner: int) -> int:
    """Return where the outer layout stores the float at offset `inner` of the inner layout."""
    containing = next(s for s in slices if s.inner <= inner < s.inner + s.length)
    return containing.outer + inner - containing.inner
