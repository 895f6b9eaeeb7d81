"""Trees as Flower's records, and back, to the bit. No pickle: arrays are NumPy's own format, the rest is JSON.

NumPy has no bfloat16, nor the 8-bit floats: these travel as integers of the same width, and their type by name.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedssl.tree import Tree, Value, describe, restore

ARRAYS, TREE = "arrays", "tree"
_INTEGER = {1: torch.uint8, 2: torch.int16}  # by width, for what NumPy has no name for
_FOREIGN = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
}


class Encoder:
    """Trees to records. A tensor that was in the last tree, too, is not encoded again: Flower sends equal arrays once,
    and most messages of a round are equal."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[Tensor, Array]] = {}  # the tensor is held, so that nobody else gets its id

    def __call__(self, tree: Tree) -> RecordDict:
        tensors, described = describe(tree)
        made = {id(tensor): self._last.get(id(tensor)) or (tensor, _array(tensor)) for tensor in tensors.values()}
        self._last = made
        foreign = {name: kind for name, t in tensors.items() if (kind := str(t.dtype).partition(".")[2]) in _FOREIGN}
        arrays = ArrayRecord()
        for name, tensor in tensors.items():
            arrays[name] = made[id(tensor)][1]  # one by one: made of a dict, the record would have copies
        return RecordDict({ARRAYS: arrays, TREE: ConfigRecord({"json": json.dumps({**described, "foreign": foreign})})})


def encode(tree: Tree) -> RecordDict:
    return Encoder()(tree)


def _array(tensor: Tensor) -> Array:
    plain = tensor.detach().cpu().contiguous()
    if str(tensor.dtype).removeprefix("torch.") in _FOREIGN:
        plain = plain.view(_INTEGER[plain.element_size()])
    return Array(plain.numpy())


def decode(records: RecordDict) -> dict[str, Value]:
    """The tree in a message; a ValueError if there is none. What it holds is for others to judge."""
    try:
        described = json.loads(str(records[TREE]["json"]))
        arrays, foreign = records[ARRAYS], described["foreign"]
        tensors = {name: _tensor(array, foreign.get(name)) for name, array in arrays.items()}
        tree = restore(tensors, described)
    except Exception as problem:  # a stranger may have written anything
        raise ValueError(f"no tree can be read from this message ({type(problem).__name__})") from problem
    if not all(isinstance(key, str) for key in tree):
        raise ValueError("a tree's keys are words")
    return tree


def _tensor(array: Any, foreign: str | None) -> Tensor:
    plain = array.numpy()
    found = torch.from_numpy(plain if plain.flags.writeable else np.array(plain))
    return found if foreign is None else found.view(_FOREIGN[foreign])
