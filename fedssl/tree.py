"""Named tensors and their arithmetic: everything that crosses a boundary is a Tree.

A model travels as a `State`: one flat float32 row, one flat int64 row, and a `Layout` that says what lies where
and in which role. Loading, averaging and measuring a model are then single operations on a row, and whoever must
treat normalisation layers or counters differently goes by role, never by name.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from safetensors.torch import load as _load
from safetensors.torch import save as _save
from torch import Tensor

from fedssl import recycle, rows
from fedssl.layout import PARAMETERS, Entry, Layout, Role, meeting, runs


@dataclass(frozen=True, eq=False)
class State:
    """A model's numbers: `floats` (layout.floats,) float32 and `counts` (layout.counts,) int64."""

    layout: Layout
    floats: Tensor
    counts: Tensor

    @classmethod
    def empty(cls, layout: Layout, device: torch.device | str = "cpu") -> State:
        floats = recycle.row(layout.floats, device=device).zero_()
        return cls(layout, floats, torch.zeros(layout.counts, dtype=torch.int64, device=device))

    def view(self, entry: Entry) -> Tensor:
        """The entry as its module sees it. Convolutions lie as (out, h, w, in): the accelerators' order."""
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
        for integer, mine, theirs, length in runs(self.layout, other.layout):
            to, source = (self.counts, other.counts) if integer else (self.floats, other.floats)
            to[mine : mine + length].copy_(source[theirs : theirs + length], non_blocking=True)

    def overwritten(self, other: State) -> State:
        """This with every entry that `other` has taken from it: a copy, or `other` itself where it has them all."""
        if self.layout == other.layout:
            return other
        copy = self.clone()
        copy.load(other)
        return copy

    def pick(self, parts: Collection[str] | None = None, roles: Collection[Role] | None = None) -> State:
        """A copy of some parts, or of the entries in some roles."""
        return self.restricted(self.layout.pick(parts, roles))

    def restricted(self, layout: Layout) -> State:
        """A copy of the entries in `layout`, laid out as it says."""
        floats = recycle.row(layout.floats, self.floats.dtype, self.floats.device)
        picked = State(layout, floats, self.counts.new_empty(layout.counts))
        for integer, mine, theirs, length in runs(self.layout, layout):
            source, to = (self.counts, picked.counts) if integer else (self.floats, picked.floats)
            to[theirs : theirs + length].copy_(source[mine : mine + length])
        return picked

    def without_prefix(self, prefix: str) -> State:
        """The same rows under names without `prefix.`: a target network seen as an encoder."""
        return State(self.layout.without_prefix(prefix), self.floats, self.counts)

    def with_prefix(self, prefix: str) -> State:
        """The same rows under names with `prefix.`: an encoder as a target network."""
        return State(self.layout.with_prefix(prefix), self.floats, self.counts)

    def clone(self) -> State:
        return self.restricted(self.layout)

    def to(self, device: torch.device | str) -> State:
        return State(self.layout, self.floats.to(device), self.counts.to(device))

    def lerp(self, other: State, share: float | Tensor) -> State:
        """(1 − share)·self + share·other; counters stay as they are."""
        if self.layout != other.layout:
            raise ValueError(self.layout.first_difference(other.layout))
        return State(self.layout, torch.lerp(self.floats, other.floats, share), self.counts.clone())

    def distance(self, other: State, parts: Collection[str] | None = None) -> Tensor:
        """L2 distance over parameters, as a 0-d tensor on the rows' device."""
        total = torch.zeros((), dtype=torch.float64, device=self.floats.device)
        for mine, theirs, length in meeting(self.layout, other.layout, self.layout.pick(parts, PARAMETERS)):
            total += rows.squared_distance(self.floats[mine : mine + length], other.floats[theirs : theirs + length])
        return total.sqrt().float()

    def stretches(self, roles: Collection[Role]) -> list[Tensor]:
        """Live slices of the float row that hold the entries in some roles."""
        found = runs(self.layout, self.layout.pick(None, roles))
        return [self.floats[start : start + length] for integer, start, _, length in found if not integer]

    @property
    def nbytes(self) -> int:
        return self.floats.nbytes + self.counts.nbytes


Value: TypeAlias = State | Tensor | int | float | bool | str
Tree: TypeAlias = Mapping[str, Value]


class Mean:
    """A weighted mean: one running float64 sum, whatever the number of states; counters keep the largest.

    A state waits, unchanged, for the next: by two at a time the long sum is gone through half as often.
    """

    def __init__(self) -> None:
        self._sum: State | None = None
        self._weight = 0.0
        self._waiting: list[tuple[Tensor, float]] = []

    def add(self, state: State, weight: float) -> None:
        if self._sum is None:
            self._sum = State(state.layout, rows.weighted(state.floats, weight), state.counts.clone())
        else:
            if state.layout != self._sum.layout:
                raise ValueError(self._sum.layout.first_difference(state.layout))
            self._waiting.append((state.floats, weight))
            torch.maximum(self._sum.counts, state.counts, out=self._sum.counts)
            if len(self._waiting) == 2:
                self._settle(self._sum.floats)
        self._weight += weight

    def _settle(self, total: Tensor) -> None:
        rows.add(total, self._waiting)
        self._waiting.clear()

    def result(self) -> State:
        if self._sum is None or self._weight <= 0:
            raise ValueError("a mean of nothing")
        self._settle(self._sum.floats)
        return State(self._sum.layout, rows.divided(self._sum.floats, self._weight), self._sum.counts)


def nbytes(tree: Tree) -> int:
    """What a tree weighs on the wire: its tensors, and eight bytes for each scalar."""
    return sum(value.nbytes if isinstance(value, State | Tensor) else 8 for value in tree.values())


def to_device(tree: Tree, device: torch.device | str) -> dict[str, Value]:
    return {key: v.to(device) if isinstance(v, State | Tensor) else v for key, v in tree.items()}


def describe(tree: Tree) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A tree taken apart: its tensors by name, as they are, and all the rest as values for JSON. See `restore`.

    A tensor's name begins with its key's number, so that no two keys can claim the same name.
    """
    tensors: dict[str, Tensor] = {}
    rest: dict[str, Any] = {}
    for i, (key, value) in enumerate(tree.items()):
        if isinstance(value, State):
            tensors[f"{i}:{key}/floats"], tensors[f"{i}:{key}/counts"] = value.floats, value.counts
            rest[key] = {"layout": list_entries(value.layout)}
        elif isinstance(value, Tensor):
            tensors[f"{i}:{key}"] = value
        else:
            rest[key] = value
    return tensors, {"keys": list(tree), "rest": rest}


def restore(tensors: Mapping[str, Tensor], described: Mapping[str, Any]) -> dict[str, Value]:
    """The tree that `describe` took apart."""
    keys, rest = described["keys"], described["rest"]
    tree: dict[str, Value] = {}
    for i, key in enumerate(keys):
        value = rest.get(key)
        if isinstance(value, dict):
            layout = layout_of(value["layout"])
            tree[key] = State(layout, tensors[f"{i}:{key}/floats"], tensors[f"{i}:{key}/counts"])
        else:
            tree[key] = rest[key] if key in rest else tensors[f"{i}:{key}"]
    return tree


def list_entries(layout: Layout) -> list[list[Any]]:
    """A layout as values for JSON."""
    return [[e.name, list(e.shape), e.role] for e in layout.entries]


def layout_of(entries: Iterable[Sequence[Any]]) -> Layout:
    return Layout(tuple(Entry(name, tuple(shape), role) for name, shape, role in entries))


def dumps(tree: Tree) -> bytes:
    """A tree as safetensors bytes: tensors as they are, the rest as JSON in the header. No pickle."""
    tensors, described = describe(tree)
    seen: set[int] = set()  # the format has no way to say that two tensors lie in the same memory
    for name, tensor in tensors.items():
        memory = tensor.untyped_storage().data_ptr()
        tensors[name] = (tensor.detach().clone() if memory in seen else tensor.detach()).cpu().contiguous()
        seen.add(memory)
    # One entry of metadata: of several, safetensors writes the order at random, and equal trees get unequal bytes.
    return bytes(_save(tensors, {"tree": json.dumps(described, allow_nan=True)}))


def loads(data: bytes) -> dict[str, Value]:
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    return restore(_load(data), json.loads(header["tree"]))


def model(tree: Tree, key: str) -> State:
    """The State under a key; a TypeError if something else lies there."""
    value = tree[key]
    if not isinstance(value, State):
        raise TypeError(f"{key} is not a State")
    return value


def tensor(tree: Tree, key: str) -> Tensor:
    """The Tensor under a key; a TypeError if something else lies there."""
    value = tree[key]
    if not isinstance(value, Tensor):
        raise TypeError(f"{key} is not a Tensor")
    return value


def number(tree: Tree, key: str, default: float | None = None) -> float:
    """The number under a key, or the default where there is none; a TypeError if something else lies there."""
    value = tree.get(key, default)
    if not isinstance(value, int | float):
        raise TypeError(f"{key} is not a number")
    return value
