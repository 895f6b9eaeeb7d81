"""Encode Trees as Flower's records and decode them, bit for bit.

No pickle: arrays are in NumPy's format, the rest is JSON. NumPy has no bfloat16 and no 8-bit
floats: these are sent as integers of the same width, with the name of their dtype.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedssl.core.state.codec import describe, restore
from fedssl.core.state.tree import Tree, Value

ARRAYS = "arrays"
TREE = "tree"
_INTEGER_BY_WIDTH = {1: torch.uint8, 2: torch.int16}
_NOT_IN_NUMPY = {
    "bfloat16": torch.bfloat16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
    "float8_e4m3fnuz": torch.float8_e4m3fnuz,
    "float8_e5m2fnuz": torch.float8_e5m2fnuz,
}


class Encoder:
    """Encode Trees as records.

    A tensor that was also in the previous tree is not encoded again: Flower sends equal arrays
    once, and most messages of a round are equal.
    """

    def __init__(self) -> None:
        # Holding the tensor keeps its id from being reused.
        self._previous: dict[int, tuple[Tensor, Array]] = {}

    def __call__(self, tree: Tree) -> RecordDict:
        tensors, description = describe(tree)
        encoded: dict[int, tuple[Tensor, Array]] = {}
        dtypes: dict[str, str] = {}
        arrays = ArrayRecord()
        for name, tensor in tensors.items():
            entry = self._previous.get(id(tensor)) or encoded.get(id(tensor))
            if entry is None:
                entry = (tensor, _to_array(tensor))
            encoded[id(tensor)] = entry
            # One by one: an ArrayRecord made from a dict would hold copies.
            arrays[name] = entry[1]
            dtype = _dtype_name(tensor)
            if dtype in _NOT_IN_NUMPY:
                dtypes[name] = dtype
        self._previous = encoded
        text = json.dumps({**description, "foreign": dtypes})
        return RecordDict({ARRAYS: arrays, TREE: ConfigRecord({"json": text})})


def encode(tree: Tree) -> RecordDict:
    """Return a tree as records."""
    return Encoder()(tree)


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _to_array(tensor: Tensor) -> Array:
    values = tensor.detach().cpu().contiguous()
    if _dtype_name(tensor) in _NOT_IN_NUMPY:
        values = values.view(_INTEGER_BY_WIDTH[values.element_size()])
    return Array(values.numpy())


def decode(records: RecordDict) -> dict[str, Value]:
    """Return the tree in a message; raises ValueError if it is unreadable.

    The values of the tree are not validated.
    """
    try:
        description = json.loads(str(records[TREE]["json"]))
        dtypes = description["foreign"]
        tensors = {}
        for name, array in records[ARRAYS].items():
            tensors[name] = _to_tensor(array, dtypes.get(name))
        tree = restore(tensors, description)
    except Exception as problem:  # a node may have written anything
        raise ValueError(
            f"no tree can be read from this message ({type(problem).__name__})"
        ) from problem
    if not all(isinstance(key, str) for key in tree):
        raise ValueError("the keys of a tree must be strings")
    return tree


def _to_tensor(array: Any, dtype: str | None) -> Tensor:
    values = array.numpy()
    if not values.flags.writeable:
        values = np.array(values)
    tensor = torch.from_numpy(values)
    if dtype is None:
        return tensor
    return tensor.view(_NOT_IN_NUMPY[dtype])
