"""Encode trees as safetensors bytes, and layouts as JSON values. No pickle."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from safetensors.torch import load as _load
from safetensors.torch import save as _save
from torch import Tensor

from fedssl.core.state.layout import Entry, Layout
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, Value


def describe(tree: Tree) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return a tree's tensors by name, unchanged, and the rest as JSON values. See `restore`.

    A tensor's name begins with the number of its key, so that no two keys share a name.
    """
    tensors: dict[str, Tensor] = {}
    rest: dict[str, Any] = {}
    for i, (key, value) in enumerate(tree.items()):
        if isinstance(value, State):
            tensors[f"{i}:{key}/floats"] = value.floats
            tensors[f"{i}:{key}/counts"] = value.counts
            rest[key] = {"layout": list_entries(value.layout)}
        elif isinstance(value, Tensor):
            tensors[f"{i}:{key}"] = value
        else:
            rest[key] = value
    return tensors, {"keys": list(tree), "rest": rest}


def restore(tensors: Mapping[str, Tensor], described: Mapping[str, Any]) -> dict[str, Value]:
    """Return the tree that `describe` separated into tensors and JSON values."""
    keys = described["keys"]
    rest = described["rest"]
    tree: dict[str, Value] = {}
    for i, key in enumerate(keys):
        value = rest.get(key)
        if isinstance(value, dict):
            layout = layout_of(value["layout"])
            tree[key] = State(layout, tensors[f"{i}:{key}/floats"], tensors[f"{i}:{key}/counts"])
        elif key in rest:
            tree[key] = rest[key]
        else:
            tree[key] = tensors[f"{i}:{key}"]
    return tree


def list_entries(layout: Layout) -> list[list[Any]]:
    """Return a layout as JSON values."""
    return [[entry.name, list(entry.shape), entry.role] for entry in layout.entries]


def layout_of(entries: Iterable[Sequence[Any]]) -> Layout:
    """Return the layout that `list_entries` converted to JSON values."""
    return Layout(tuple(Entry(name, tuple(shape), role) for name, shape, role in entries))


def dumps(tree: Tree) -> bytes:
    """Return a tree as safetensors bytes: tensors unchanged, the rest as JSON in the header."""
    tensors, described = describe(tree)
    seen: set[int] = set()  # the format cannot represent two tensors that share memory
    for name, tensor in tensors.items():
        memory = tensor.untyped_storage().data_ptr()
        separate = tensor.detach()
        if memory in seen:
            separate = separate.clone()
        tensors[name] = separate.cpu().contiguous()
        seen.add(memory)
    # One metadata entry: safetensors writes several in random order, so equal trees would have
    # unequal bytes.
    return bytes(_save(tensors, {"tree": json.dumps(described, allow_nan=True)}))


def loads(data: bytes) -> dict[str, Value]:
    """Return the tree that `dumps` encoded."""
    header_length = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8 : 8 + header_length])["__metadata__"]
    return restore(_load(data), json.loads(metadata["tree"]))
