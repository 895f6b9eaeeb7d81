"""Encode trees as bytes and decode them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_states import LAYOUT, random_state, same
from torch import Tensor, nn

from fedssl.core.state.codec import dumps, loads
from fedssl.core.state.state import State

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)


def _tensor(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 50
    return values.abs().to(dtype) if dtype is torch.uint8 else values.to(dtype)


tensors = st.builds(
    _tensor,
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
    st.sampled_from(DTYPES),
    st.integers(0, 99),
)
states = st.builds(
    lambda parts, seed: random_state(seed).pick(parts),
    st.sets(st.sampled_from(LAYOUT.parts)),
    st.integers(0, 9),
)
scalars = st.one_of(st.integers(), st.floats(), st.booleans(), st.text())
keys = st.one_of(
    st.text(),
    st.sampled_from(["a", "a/floats", "0:a", "0:a/floats", "__metadata__", "site/0/model", ""]),
)
trees = st.dictionaries(keys, st.one_of(tensors, states, scalars), max_size=6)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, State):
        return isinstance(b, State) and same(a, b)
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    return type(a) is type(b) and (a == b or (a != a and b != b))


@settings(max_examples=200)
@given(trees)
def test_an_encoded_tree_is_decoded_unchanged(tree: dict[str, Any]) -> None:
    decoded = loads(dumps(tree))
    assert list(decoded) == list(tree)
    assert all(_equal(value, decoded[key]) for key, value in tree.items())


def test_nan_in_a_tensor_is_decoded_unchanged() -> None:
    odd = torch.tensor([math.nan, math.inf, -math.inf, -0.0])
    decoded = loads(dumps({"x": odd}))["x"]
    assert isinstance(decoded, Tensor)
    assert torch.equal(decoded.view(torch.int32), odd.view(torch.int32))


def test_tensors_that_share_memory() -> None:
    row = torch.arange(12.0)
    state = random_state()
    tree = {
        "whole": row,
        "again": row,
        "overlapping": row[3:9],
        "transposed": row.view(3, 4).T,
        "strided": row[::2],
        "learned": nn.Parameter(row),
        "state": state,
        "same state": state,
    }
    decoded = loads(dumps(tree))
    for key, value in tree.items():
        assert _equal(value.detach() if isinstance(value, Tensor) else value, decoded[key]), key


def test_equal_trees_have_equal_bytes() -> None:
    tree = {"model": random_state(), "n": 3, "x": torch.ones(2)}
    assert (
        len({dumps(tree) for _ in range(20)} | {dumps(loads(dumps(tree))) for _ in range(20)}) == 1
    )
    assert dumps(tree) != dumps(tree | {"n": 4})


def test_no_pickle_in_the_bytes() -> None:
    with pytest.raises(TypeError):
        dumps({"x": object()})  # type: ignore[dict-item]
