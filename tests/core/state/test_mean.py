"""Means of states by hand and against a loop."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_states import LAYOUT, random_state, same

from fedssl.core.state.mean import Mean
from fedssl.core.state.state import State


def test_mean_by_hand() -> None:
    """(1·1 + 3·5) / 4 = 4 for weights and statistics alike; of the counters 7 and 3 the larger
    stays.
    """
    mean = Mean()
    for value, count, weight in ((1.0, 7, 1), (5.0, 3, 3)):
        state = State.empty(LAYOUT)
        state.floats.fill_(value)
        state.counts.fill_(count)
        mean.add(state, weight)
    assert mean.result().floats.unique().tolist() == [4]
    assert mean.result().counts.unique().tolist() == [7]
    assert mean.result().floats.dtype == torch.float32


def test_a_mean_does_not_modify_its_inputs() -> None:
    states = [random_state(i) for i in range(3)]
    before = [state.clone() for state in states]
    mean = Mean()
    for state in states:
        mean.add(state, 2.5)
    mean.result().floats.zero_()
    assert all(map(same, states, before))


def test_a_mean_is_summed_in_double_precision() -> None:
    """10⁹ and −10⁹ cancel: of a thousand ones between them, single precision would keep none."""
    mean = Mean()
    for value in (1e9, *[1.0] * 1000, -1e9):
        state = State.empty(LAYOUT)
        state.floats.fill_(value)
        mean.add(state, 1)
    assert torch.equal(mean.result().floats, torch.full_like(state.floats, 1000 / 1002))


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=6))
def test_mean_against_a_loop_in_any_order(weights: list[int]) -> None:
    states = [random_state(i) for i in range(len(weights))]
    total = sum(s.floats.double() * w for s, w in zip(states, weights, strict=True)) / sum(weights)
    for order in itertools.islice(itertools.permutations(range(len(weights))), 4):
        mean = Mean()
        for i in order:
            mean.add(states[i], weights[i])
        torch.testing.assert_close(mean.result().floats.double(), total, rtol=1e-6, atol=1e-7)
        assert torch.equal(mean.result().counts, torch.stack([s.counts for s in states]).amax(0))


def test_a_mean_rejects_no_models_and_other_layouts() -> None:
    with pytest.raises(ValueError, match="the mean has no state"):
        Mean().result()
    mean = Mean()
    mean.add(random_state(), 1)
    with pytest.raises(ValueError, match="missing"):
        mean.add(random_state().pick(("backbone",)), 1)
