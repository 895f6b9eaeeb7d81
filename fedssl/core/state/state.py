"""A model's numbers in two flat rows.

A model travels as a `State`: one flat float32 row, one flat int64 row, and a `Layout` with the
offset and the role of each tensor. Loading, averaging and measuring a model are then single
operations on a row, and code that must treat normalisation layers or counters differently selects
them by role, never by name.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from fedssl.core.state import arithmetic, buffers
from fedssl.core.state.layout import (
    PARAMETERS,
    Entry,
    Layout,
    Role,
    matching_float_slices,
    shared_slices,
)


@dataclass(frozen=True, eq=False)
class State:
    """A model's numbers in two flat rows, so that an operation on a model is one on a row.

    `(a.floats + b.floats) / 2` is the mean of the weights of two models of one layout.
    """

    layout: Layout  # offsets, shapes and roles of the entries
    floats: Tensor  # (layout.floats,) float32: parameters, running statistics, buffers
    counts: Tensor  # (layout.counts,) int64: counters

    @classmethod
    def empty(cls, layout: Layout, device: torch.device | str = "cpu") -> State:
        """Return a state of zeros."""
        floats = buffers.row(layout.floats, device=device).zero_()
        counts = torch.zeros(layout.counts, dtype=torch.int64, device=device)
        return cls(layout, floats, counts)

    def view(self, entry: Entry) -> Tensor:
        """Return a view of the entry in its module's shape. Convolutions are stored as
        (out, h, w, in), the accelerators' order."""
        row = self._row(entry.is_counter)
        offset = self.layout.offsets[entry.name]
        flat = row[offset : offset + entry.size]
        if len(entry.shape) == 4:
            out, channels, height, width = entry.shape
            return flat.view(out, height, width, channels).permute(0, 3, 1, 2)
        return flat.view(entry.shape)

    def tensors(self) -> dict[str, Tensor]:
        """Return a view of each entry, by name."""
        return {entry.name: self.view(entry) for entry in self.layout.entries}

    def load(self, other: State) -> None:
        """Overwrite, in place, every entry that `other` has."""
        for is_counter, mine, theirs, length in shared_slices(self.layout, other.layout):
            source = other._row(is_counter)[theirs : theirs + length]
            self._row(is_counter)[mine : mine + length].copy_(source, non_blocking=True)

    def overwritten(self, other: State) -> State:
        """Return a copy in which the entries of `other` replace those of this state.

        If both have the same layout, return `other` itself.
        """
        if self.layout == other.layout:
            return other
        copy = self.clone()
        copy.load(other)
        return copy

    def pick(
        self, parts: Collection[str] | None = None, roles: Collection[Role] | None = None
    ) -> State:
        """Return a copy of some parts, or of the entries in some roles."""
        return self.restricted(self.layout.pick(parts, roles))

    def restricted(self, layout: Layout) -> State:
        """Return a copy of the entries in `layout`, in its order."""
        floats = buffers.row(layout.floats, self.floats.dtype, self.floats.device)
        copy = State(layout, floats, self.counts.new_empty(layout.counts))
        for is_counter, mine, theirs, length in shared_slices(self.layout, layout):
            source = self._row(is_counter)[mine : mine + length]
            copy._row(is_counter)[theirs : theirs + length].copy_(source)
        return copy

    def without_prefix(self, prefix: str) -> State:
        """Return the same rows under names without `prefix.`: a target network as an encoder."""
        return State(self.layout.without_prefix(prefix), self.floats, self.counts)

    def with_prefix(self, prefix: str) -> State:
        """Return the same rows under names with `prefix.`: an encoder as a target network."""
        return State(self.layout.with_prefix(prefix), self.floats, self.counts)

    def clone(self) -> State:
        """Return a copy."""
        return self.restricted(self.layout)

    def to(self, device: torch.device | str) -> State:
        """Return the state on a device; rows that are there already are shared."""
        return State(self.layout, self.floats.to(device), self.counts.to(device))

    def lerp(self, other: State, share: float | Tensor) -> State:
        """Return (1 − share)·self + share·other, with the counters of `self`."""
        if self.layout != other.layout:
            raise ValueError(self.layout.first_difference(other.layout))
        return State(self.layout, torch.lerp(self.floats, other.floats, share), self.counts.clone())

    def distance(self, other: State, parts: Collection[str] | None = None) -> Tensor:
        """Return the L2 distance over parameters, as a 0-d tensor on the rows' device."""
        total = torch.zeros((), dtype=torch.float64, device=self.floats.device)
        parameters = self.layout.pick(parts, PARAMETERS)
        for mine, theirs, length in matching_float_slices(self.layout, other.layout, parameters):
            total += arithmetic.squared_distance(
                self.floats[mine : mine + length], other.floats[theirs : theirs + length]
            )
        return total.sqrt().float()

    def float_slices(self, roles: Collection[Role]) -> list[Tensor]:
        """Return live slices of the float row that hold the entries in some roles."""
        slices = shared_slices(self.layout, self.layout.pick(None, roles))
        return [self.floats[s.outer : s.outer + s.length] for s in slices if not s.is_counter]

    @property
    def nbytes(self) -> int:
        """The size of both rows in bytes."""
        return self.floats.nbytes + self.counts.nbytes

    def _row(self, is_counter: bool) -> Tensor:
        return self.counts if is_counter else self.floats
