"""Named tensors and their arithmetic: everything that crosses a boundary is a Tree.

A model travels as a `State`: one flat float32 row, one flat int64 row, and a `Layout` that says what lies where
and in which role. Loading, averaging and measuring a model are then single operations on a row, and whoever must
treat normalisation layers or counters differently goes by role, never by name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from safetensors.torch import load as _load
from safetensors.torch import save as _save
from torch import Tensor

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

    def strip(self, prefix: str) -> Layout:
        """The same layout with `prefix.` taken off every name that has it."""
        return Layout(tuple(entry._replace(name=entry.name.removeprefix(prefix + ".")) for entry in self.entries))

    def prefix(self, prefix: str) -> Layout:
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
            if mine[name] != theirs[name]:
                return f"{name} has shape {theirs[name].shape}, expected {mine[name].shape}"
        return "the entries are in another order"


@lru_cache(maxsize=256)
def _runs(outer: Layout, inner: Layout) -> tuple[tuple[bool, int, int, int], ...]:
    """Contiguous stretches (integer?, offset in outer, offset in inner, length) that `inner` shares with `outer`."""
    runs: list[tuple[bool, int, int, int]] = []
    for entry in inner.entries:
        integer, size = entry.role == "counter", entry.size
        if entry.name not in outer.offsets:
            raise KeyError(f"{entry.name} is not in this state")
        a, b = outer.offsets[entry.name], inner.offsets[entry.name]
        for i in range(len(runs) - 1, max(-1, len(runs) - 3), -1):
            kind, ra, rb, length = runs[i]
            if kind == integer and ra + length == a and rb + length == b:
                runs[i] = (kind, ra, rb, length + size)
                break
        else:
            runs.append((integer, a, b, size))
    return tuple(runs)


@dataclass(frozen=True, eq=False)
class State:
    """A model's numbers: `floats` (layout.floats,) float32 and `counts` (layout.counts,) int64."""

    layout: Layout
    floats: Tensor
    counts: Tensor

    @classmethod
    def empty(cls, layout: Layout, device: torch.device | str = "cpu") -> State:
        floats = torch.zeros(layout.floats, device=device)
        return cls(layout, floats, torch.zeros(layout.counts, dtype=torch.int64, device=device))

    @classmethod
    def from_tensors(cls, layout: Layout, tensors: Mapping[str, Tensor]) -> State:
        state = cls.empty(layout)
        for name, view in state.tensors().items():
            view.copy_(tensors[name])
        return state

    def view(self, entry: Entry) -> Tensor:
        """The entry as its module sees it. Convolution weights lie as (out, h, w, in): the accelerators' order."""
        row = self.counts if entry.role == "counter" else self.floats
        offset = self.layout.offsets[entry.name]
        flat = row[offset : offset + entry.size]
        if len(entry.shape) == 4:
            out, channels, height, width = entry.shape
            return flat.view(out, height, width, channels).permute(0, 3, 1, 2)
        return flat.view(entry.shape)

    def tensors(self) -> dict[str, Tensor]:
        return {entry.name: self.view(entry) for entry in self.layout.entries}

    def load(self, other: State) -> None:
        """Overwrite, in place, every entry that `other` has."""
        for integer, mine, theirs, length in _runs(self.layout, other.layout):
            to, source = (self.counts, other.counts) if integer else (self.floats, other.floats)
            to[mine : mine + length].copy_(source[theirs : theirs + length], non_blocking=True)

    def overwritten(self, other: State) -> State:
        """A copy with every entry that `other` has taken from it."""
        if self.layout == other.layout:
            return other
        copy = self.clone()
        copy.load(other)
        return copy

    def pick(self, parts: Collection[str] | None = None, roles: Collection[Role] | None = None) -> State:
        """A copy of some parts, or of the entries in some roles."""
        layout = self.layout.pick(parts, roles)
        picked = State(
            layout, self.floats.new_empty(layout.floats), self.counts.new_empty(layout.counts)
        )
        for integer, mine, theirs, length in _runs(self.layout, layout):
            source, to = (self.counts, picked.counts) if integer else (self.floats, picked.floats)
            to[theirs : theirs + length].copy_(source[mine : mine + length])
        return picked

    def strip(self, prefix: str) -> State:
        """The same rows under names without `prefix.`: a target network seen as an encoder."""
        return State(self.layout.strip(prefix), self.floats, self.counts)

    def prefix(self, prefix: str) -> State:
        """The same rows under names with `prefix.`: an encoder as a target network."""
        return State(self.layout.prefix(prefix), self.floats, self.counts)

    def clone(self) -> State:
        return State(self.layout, self.floats.clone(), self.counts.clone())

    def to(self, device: torch.device | str) -> State:
        return State(self.layout, self.floats.to(device), self.counts.to(device))

    def lerp(self, other: State, share: float | Tensor) -> State:
        """(1 − share)·self + share·other; counters stay as they are."""
        return State(self.layout, torch.lerp(self.floats, other.floats, share), self.counts.clone())

    def distance(self, other: State, parts: Collection[str] | None = None) -> Tensor:
        """L2 distance over parameters, as a 0-d tensor on the rows' device."""
        layout = self.layout.pick(parts, PARAMETERS)
        squares = [
            (self.floats[a : a + n] - other.floats[b : b + n]).square().sum()
            for (_, a, _, n), (_, b, _, _) in zip(
                _runs(self.layout, layout), _runs(other.layout, layout), strict=True
            )
        ]
        return torch.stack(squares).sum().sqrt() if squares else self.floats.new_zeros(())

    @property
    def nbytes(self) -> int:
        return self.floats.nbytes + self.counts.nbytes


Value: TypeAlias = State | Tensor | int | float | bool | str
Tree: TypeAlias = Mapping[str, Value]


class Mean:
    """A weighted mean that holds one running float64 sum, whatever the number of states; counters keep the largest."""

    def __init__(self) -> None:
        self._sum: State | None = None
        self._weight = 0.0

    def add(self, state: State, weight: float) -> None:
        if self._sum is None:
            self._sum = State(state.layout, state.floats.double() * weight, state.counts.clone())
        else:
            if state.layout != self._sum.layout:
                raise ValueError(self._sum.layout.first_difference(state.layout))
            self._sum.floats.add_(state.floats.double(), alpha=weight)
            torch.maximum(self._sum.counts, state.counts, out=self._sum.counts)
        self._weight += weight

    def result(self) -> State:
        if self._sum is None or self._weight <= 0:
            raise ValueError("a mean of nothing")
        return State(self._sum.layout, (self._sum.floats / self._weight).float(), self._sum.counts)


def nbytes(tree: Tree) -> int:
    """What a tree weighs on the wire: its tensors, and eight bytes for each scalar."""
    return sum(value.nbytes if isinstance(value, State | Tensor) else 8 for value in tree.values())


def to_device(tree: Tree, device: torch.device | str) -> dict[str, Value]:
    return {key: v.to(device) if isinstance(v, State | Tensor) else v for key, v in tree.items()}


def dumps(tree: Tree) -> bytes:
    """A tree as safetensors bytes: tensors as they are, the rest as JSON in the header. No pickle."""
    tensors: dict[str, Tensor] = {}
    rest: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, State):
            tensors[f"{key}/floats"], tensors[f"{key}/counts"] = value.floats, value.counts
            rest[key] = {"layout": [[e.name, list(e.shape), e.role] for e in value.layout.entries]}
        elif isinstance(value, Tensor):
            tensors[key] = value
        else:
            rest[key] = value
    seen: set[int] = set()  # the format has no way to say that two tensors are one
    for key, tensor in tensors.items():
        shared = tensor.data_ptr() in seen
        seen.add(tensor.data_ptr())
        tensors[key] = (tensor.clone() if shared else tensor.detach()).cpu().contiguous()
    return bytes(_save(tensors, {"tree": json.dumps(rest, allow_nan=True), "keys": json.dumps(list(tree))}))


def loads(data: bytes) -> dict[str, Value]:
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    rest, tensors = json.loads(header["tree"]), _load(data)
    tree: dict[str, Value] = {}
    for key in json.loads(header["keys"]):
        value = rest.get(key)
        if isinstance(value, dict):
            layout = Layout(tuple(Entry(name, tuple(shape), role) for name, shape, role in value["layout"]))
            tree[key] = State(layout, tensors[f"{key}/floats"], tensors[f"{key}/counts"])
        else:
            tree[key] = tensors[key] if key in tensors else rest[key]
    return tree


def read(path: Path) -> dict[str, Value]:
    return loads(path.read_bytes())


def model(tree: Tree, key: str) -> State:
    """The State under a key; a TypeError if something else lies there."""
    value = tree[key]
    if not isinstance(value, State):
        raise TypeError(f"{key} is not a State")
    return value


def states(tree: Tree) -> Iterator[tuple[str, State]]:
    return ((key, value) for key, value in tree.items() if isinstance(value, State))
