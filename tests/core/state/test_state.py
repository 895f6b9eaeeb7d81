"""States against loops over their entries, and by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_states import LAYOUT, random_state, same
from torch import nn

from fedssl.core.state.flatten import flatten_module
from fedssl.core.state.layout import PARAMETERS, Entry, Layout
from fedssl.core.state.state import State


def test_a_convolution_is_stored_with_its_channels_last() -> None:
    state = State.empty(LAYOUT)
    weight = torch.arange(24.0).view(2, 3, 2, 2)
    view = state.view(LAYOUT.entries[0])
    view.copy_(weight)
    assert torch.equal(view, weight)
    assert view.is_contiguous(memory_format=torch.channels_last)
    expected = [
        weight[o, c, h, w].item()
        for o in range(2)
        for h in range(2)
        for w in range(2)
        for c in range(3)
    ]
    assert state.floats[:24].tolist() == expected


def test_tensors_are_live_views() -> None:
    state = random_state()
    for view in state.tensors().values():
        view.fill_(7)
    assert bool((state.floats == 7).all())
    assert bool((state.counts == 7).all())


def test_a_resident_module_uses_its_rows() -> None:
    """Values, roles and gradients are unchanged; the module computes with values written to the
    row.
    """
    module = nn.ModuleDict(
        {"backbone": nn.Sequential(nn.Conv2d(3, 2, 2), nn.BatchNorm2d(2), nn.Flatten())}
    )
    expected = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    x = torch.randn(4, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    output = module["backbone"].eval()(x)
    state = flatten_module(module, "cpu")
    assert {
        name: torch.equal(t, expected[name]) for name, t in state.tensors().items()
    } == dict.fromkeys(expected, True)
    assert {e.name.split(".", 1)[1]: e.role for e in state.layout.entries} == {
        "0.weight": "weight",
        "0.bias": "weight",
        "1.weight": "norm",
        "1.bias": "norm",
        "1.running_mean": "statistic",
        "1.running_var": "statistic",
        "1.num_batches_tracked": "counter",
    }
    torch.testing.assert_close(module["backbone"](x), output)
    state.floats.zero_()
    assert not module["backbone"](x).any()


@pytest.mark.parametrize(
    "parts", [None, ("backbone",), ("backbone", "predictor"), ("queue", "projector"), ()]
)
@pytest.mark.parametrize("roles", [None, PARAMETERS, ("counter",), ("statistic", "buffer")])
def test_pick_copies_only_the_chosen_entries(parts: tuple[str, ...] | None, roles: Any) -> None:
    state = random_state()
    picked = state.pick(parts, roles)
    expected = {
        e.name: state.view(e)
        for e in LAYOUT.entries
        if (parts is None or e.part in parts) and (roles is None or e.role in roles)
    }
    assert list(picked.tensors()) == list(expected)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in picked.tensors().items())
    before = state.clone()
    picked.floats.fill_(9)
    picked.counts.fill_(9)
    assert same(state, before)


@given(st.sets(st.sampled_from(LAYOUT.parts)))
def test_load_overwrites_only_entries_of_the_other_state(parts: set[str]) -> None:
    state = random_state(0)
    other = random_state(1).pick(parts)
    before = state.clone()
    copy = state.overwritten(other)
    assert same(state, before)
    state.load(other)
    assert same(state, copy)
    for entry in LAYOUT.entries:
        source = other if entry.part in parts else before
        assert torch.equal(state.view(entry), source.view(entry))


def test_load_rejects_entries_that_do_not_exist() -> None:
    small = random_state().pick(("backbone",))
    before = small.clone()
    with pytest.raises(KeyError, match="projector"):
        small.load(random_state())
    odd = Layout.of([Entry("backbone.scale", (3,), "norm")])
    with pytest.raises(ValueError, match=r"backbone\.scale"):
        small.load(State.empty(odd))
    assert same(small, before)


def test_a_prefix_changes_names_and_no_numbers() -> None:
    state = random_state().pick(("backbone", "projector"))
    target = state.with_prefix("target")
    assert target.layout.parts == ("target",)
    assert target.floats is state.floats
    assert same(target.without_prefix("target"), state)


@pytest.mark.parametrize("parts", [None, ("backbone",), ("backbone", "predictor"), ("queue",), ()])
def test_distance_is_over_parameters(parts: tuple[str, ...] | None) -> None:
    a = random_state(0)
    b = random_state(1)
    expected = sum(
        (x - y) ** 2
        for e in LAYOUT.entries
        if e.role in PARAMETERS and (parts is None or e.part in parts)
        for x, y in zip(a.view(e).flatten().tolist(), b.view(e).flatten().tolist(), strict=True)
    )
    assert a.distance(b, parts).item() == pytest.approx(math.sqrt(expected), rel=1e-6)
    assert a.distance(b, parts) == b.distance(a, parts)


@given(st.sets(st.sampled_from(LAYOUT.parts), min_size=1))
def test_distance_between_states_of_different_parts(parts: set[str]) -> None:
    """Neighbours in one row need not be neighbours in the other."""
    a = random_state(0)
    b = random_state(1)
    torch.testing.assert_close(a.pick(parts).distance(b), a.distance(b, parts))
    torch.testing.assert_close(a.distance(b.pick(parts), parts), a.distance(b, parts))


def test_lerp_by_hand() -> None:
    """(1 − 0.25)·2 + 0.25·6 = 3; counters stay."""
    a = State.empty(LAYOUT)
    b = State.empty(LAYOUT)
    a.floats.fill_(2)
    a.counts.fill_(5)
    b.floats.fill_(6)
    b.counts.fill_(9)
    between = a.lerp(b, 0.25)
    assert between.floats.unique().tolist() == [3]
    assert between.counts.unique().tolist() == [5]
    assert torch.equal(a.lerp(b, torch.tensor(0.25)).floats, between.floats)
    between.counts.zero_()
    assert a.counts.unique().tolist() == [5]
    with pytest.raises(ValueError, match="missing"):
        a.lerp(b.pick(("backbone",)), 0.5)
