"""A Tree is a flat mapping of names to models, tensors and scalars.

Messages, uploads, the states of sites and the memory of clients are Trees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor

from fedssl.core.state.state import State

Value: TypeAlias = State | Tensor | int | float | bool | str
Tree: TypeAlias = Mapping[str, Value]
"""Named values: models (State), tensors, numbers, truth values and text. Trees are not nested, and
a Tree that was received must not be changed."""


def nbytes(tree: Tree) -> int:
    """Return the size of a tree on the wire: its tensors, and eight bytes for each scalar."""
    total = 0
    for value in tree.values():
        if isinstance(value, State | Tensor):
            total += value.nbytes
        else:
            total += 8
    return total


def to_device(tree: Tree, device: torch.device | str) -> dict[str, Value]:
    """Return the tree with its states and tensors on a device."""
    return map_tensors(tree, lambda tensor: tensor.to(device))


def map_tensors(tree: Tree, change: Callable[[Tensor], Tensor]) -> dict[str, Value]:
    """Return the tree with every tensor changed, those of its states too."""
    changed: dict[str, Value] = {}
    for key, value in tree.items():
        if isinstance(value, State):
            changed[key] = State(value.layout, change(value.floats), change(value.counts))
        elif isinstance(value, Tensor):
            changed[key] = change(value)
        else:
            changed[key] = value
    return changed


def model(tree: Tree, key: str) -> State:
    """Return the State under a key; raise TypeError if the value is not a State."""
    value = tree[key]
    if not isinstance(value, State):
        raise TypeError(f"{key} is not a State")
    return value


def tensor(tree: Tree, key: str) -> Tensor:
    """Return the Tensor under a key; raise TypeError if the value is not a Tensor."""
    value = tree[key]
    if not isinstance(value, Tensor):
        raise TypeError(f"{key} is not a Tensor")
    return value


def number(tree: Tree, key: str, default: float | None = None) -> float:
    """Return the number under a key, or the default if the key is missing; raise TypeError if the
    value is not a number."""
    value = tree.get(key, default)
    if not isinstance(value, int | float):
        raise TypeError(f"{key} is not a number")
    return value
