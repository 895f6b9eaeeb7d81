"""Encode Trees as Flower's records and decode them, bit for bit.

No pickle: each tensor is one array of Flower's in the format of safetensors, the rest is JSON.
"""

from __future__ import annotations

import json

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from safetensors.torch import load, save
from torch import Tensor

from fedssl.core.state.codec import describe, restore
from fedssl.core.state.tree import Tree, Value

ARRAYS = "arrays"
TREE = "tree"
FORMAT = "safetensors"
TENSOR = "tensor"  # its name within an array


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
        arrays = ArrayRecord()
        for name, tensor in tensors.items():
            entry = self._previous.get(id(tensor)) or encoded.get(id(tensor))
            if entry is None:
                entry = (tensor, _to_array(tensor))
            encoded[id(tensor)] = entry
            # One by one: an ArrayRecord made from a dict would hold copies.
            arrays[name] = entry[1]
        self._previous = encoded
        return RecordDict({ARRAYS: arrays, TREE: ConfigRecord({"json": json.dumps(description)})})


def encode(tree: Tree) -> RecordDict:
    """Return a tree as records."""
    return Encoder()(tree)


def _to_array(tensor: Tensor) -> Array:
    values = tensor.detach().cpu().contiguous()
    return Array(str(values.dtype), tuple(values.shape), FORMAT, save({TENSOR: values}))


def decode(records: RecordDict) -> dict[str, Value]:
    """Return the tree in a message; raises ValueError if it is unreadable.

    The values of the tree are not validated.
    """
    try:
        description = json.loads(str(records[TREE]["json"]))
        tensors = {}
        for name, array in records[ARRAYS].items():
            tensors[name] = load(array.data)[TENSOR]
        tree = restore(tensors, description)
    except Exception as problem:  # a node may have written anything
        raise ValueError(
            f"no tree can be read from this message ({type(problem).__name__})"
        ) from problem
    if not all(isinstance(key, str) for key in tree):
        raise ValueError("the keys of a tree must be strings")
    return tree
