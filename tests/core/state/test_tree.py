"""Sizes, devices and typed access of trees."""

from __future__ import annotations

import pytest
import torch
from random_states import LAYOUT, random_state

from fedssl.core.state.tree import model, nbytes, number, tensor, to_device


def test_nbytes() -> None:
    """Four bytes a float, eight a counter or a scalar."""
    state = random_state()
    assert nbytes({"m": state, "n": 1, "x": torch.zeros(3, dtype=torch.bfloat16)}) == (
        4 * LAYOUT.floats + 8 * LAYOUT.counts + 8 + 6
    )


def test_model_and_device() -> None:
    tree = {"m": random_state(), "n": 3}
    assert model(tree, "m") is tree["m"]
    with pytest.raises(TypeError, match="n is not a State"):
        model(tree, "n")
    assert to_device(tree, "meta")["m"].floats.is_meta  # type: ignore[union-attr]
    assert to_device(tree, "meta")["n"] == 3


def test_values_are_checked_against_the_requested_type() -> None:
    tree = {"model": random_state(), "rows": torch.ones(2), "count": 3}
    assert model(tree, "model") is tree["model"]
    assert tensor(tree, "rows") is tree["rows"]
    assert number(tree, "count") == 3
    for ask, key in ((model, "rows"), (tensor, "model"), (tensor, "count"), (number, "rows")):
        with pytest.raises(TypeError, match=f"{key} is not a"):
            ask(tree, key)
