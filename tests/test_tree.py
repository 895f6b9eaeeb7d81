"""States and their arithmetic by hand and against loops; trees through bytes and back."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedssl.layout import PARAMETERS, Entry, Layout
from fedssl.resident import settle
from fedssl.tree import Mean, State, dumps, loads, model, nbytes, number, tensor, to_device

LAYOUT = Layout.of(
    [
        Entry("backbone.conv", (2, 3, 2, 2), "weight"),
        Entry("backbone.scale", (2,), "norm"),
        Entry("backbone.mean", (2,), "statistic"),
        Entry("backbone.count", (), "counter"),
        Entry("projector.weight", (3, 2), "weight"),
        Entry("projector.count", (), "counter"),
        Entry("predictor.weight", (2, 2), "weight"),
        Entry("queue.keys", (2, 2), "buffer"),
        Entry("queue.pointer", (), "counter"),
    ]
)


def random_state(seed: int = 0, layout: Layout = LAYOUT) -> State:
    stream = torch.Generator().manual_seed(seed)
    counts = torch.randint(100, (layout.counts,), generator=stream)
    return State(layout, torch.randn(layout.floats, generator=stream), counts)


def same(a: State, b: State) -> bool:
    return a.layout == b.layout and torch.equal(a.floats, b.floats) and torch.equal(a.counts, b.counts)


def test_a_convolution_lies_with_its_channels_last() -> None:
    state = State.empty(LAYOUT)
    weight = torch.arange(24.0).view(2, 3, 2, 2)
    view = state.view(LAYOUT.entries[0])
    view.copy_(weight)
    assert torch.equal(view, weight)
    assert view.is_contiguous(memory_format=torch.channels_last)
    slowly = [weight[o, c, h, w].item() for o in range(2) for h in range(2) for w in range(2) for c in range(3)]
    assert state.floats[:24].tolist() == slowly


def test_tensors_are_live_views() -> None:
    state = random_state()
    for view in state.tensors().values():
        view.fill_(7)
    assert bool((state.floats == 7).all())
    assert bool((state.counts == 7).all())


def test_a_settled_module_lives_in_its_rows() -> None:
    """Values, roles and gradients are those of the module before; what is written to the row, the module computes."""
    module = nn.ModuleDict({"backbone": nn.Sequential(nn.Conv2d(3, 2, 2), nn.BatchNorm2d(2), nn.Flatten())})
    expected = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    x = torch.randn(4, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    output = module["backbone"].eval()(x)
    state = settle(module, "cpu")
    assert {name: torch.equal(t, expected[name]) for name, t in state.tensors().items()} == dict.fromkeys(
        expected, True
    )
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


@pytest.mark.parametrize("parts", [None, ("backbone",), ("backbone", "predictor"), ("queue", "projector"), ()])
@pytest.mark.parametrize("roles", [None, PARAMETERS, ("counter",), ("statistic", "buffer")])
def test_pick_copies_just_that(parts: tuple[str, ...] | None, roles: Any) -> None:
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
def test_load_overwrites_what_the_other_has_and_nothing_else(parts: set[str]) -> None:
    state, other = random_state(0), random_state(1).pick(parts)
    before, copy = state.clone(), state.overwritten(other)
    assert same(state, before)
    state.load(other)
    assert same(state, copy)
    for entry in LAYOUT.entries:
        source = other if entry.part in parts else before
        assert torch.equal(state.view(entry), source.view(entry))


def test_load_refuses_what_it_has_no_place_for() -> None:
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
    a, b = random_state(0), random_state(1)
    slowly = sum(
        (x - y) ** 2
        for e in LAYOUT.entries
        if e.role in PARAMETERS and (parts is None or e.part in parts)
        for x, y in zip(a.view(e).flatten().tolist(), b.view(e).flatten().tolist(), strict=True)
    )
    assert a.distance(b, parts).item() == pytest.approx(math.sqrt(slowly), rel=1e-6)
    assert a.distance(b, parts) == b.distance(a, parts)


@given(st.sets(st.sampled_from(LAYOUT.parts), min_size=1))
def test_distance_between_states_of_different_parts(parts: set[str]) -> None:
    """Neighbours in one row need not be neighbours in the other."""
    a, b = random_state(0), random_state(1)
    torch.testing.assert_close(a.pick(parts).distance(b), a.distance(b, parts))
    torch.testing.assert_close(a.distance(b.pick(parts), parts), a.distance(b, parts))


def test_lerp_by_hand() -> None:
    """(1 − 0.25)·2 + 0.25·6 = 3; counters stay."""
    a, b = State.empty(LAYOUT), State.empty(LAYOUT)
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


def test_mean_by_hand() -> None:
    """(1·1 + 3·5) / 4 = 4 for weights and statistics alike; of the counters 7 and 3 the larger stays."""
    mean = Mean()
    for value, count, weight in ((1.0, 7, 1), (5.0, 3, 3)):
        state = State.empty(LAYOUT)
        state.floats.fill_(value)
        state.counts.fill_(count)
        mean.add(state, weight)
    assert mean.result().floats.unique().tolist() == [4]
    assert mean.result().counts.unique().tolist() == [7]
    assert mean.result().floats.dtype == torch.float32


def test_a_mean_leaves_its_terms_alone() -> None:
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


def test_a_mean_refuses_nothing_and_another_layout() -> None:
    with pytest.raises(ValueError, match="nothing"):
        Mean().result()
    mean = Mean()
    mean.add(random_state(), 1)
    with pytest.raises(ValueError, match="missing"):
        mean.add(random_state().pick(("backbone",)), 1)


# -- bytes --

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
    _tensor, st.lists(st.integers(0, 3), max_size=3).map(tuple), st.sampled_from(DTYPES), st.integers(0, 99)
)
states = st.builds(
    lambda parts, seed: random_state(seed).pick(parts), st.sets(st.sampled_from(LAYOUT.parts)), st.integers(0, 9)
)
scalars = st.one_of(st.integers(), st.floats(), st.booleans(), st.text())
keys = st.one_of(st.text(), st.sampled_from(["a", "a/floats", "0:a", "0:a/floats", "__metadata__", "site/0/model", ""]))
trees = st.dictionaries(keys, st.one_of(tensors, states, scalars), max_size=6)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, State):
        return isinstance(b, State) and same(a, b)
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    return type(a) is type(b) and (a == b or (a != a and b != b))


@settings(max_examples=200)
@given(trees)
def test_a_tree_survives_its_bytes(tree: dict[str, Any]) -> None:
    back = loads(dumps(tree))
    assert list(back) == list(tree)
    assert all(_equal(value, back[key]) for key, value in tree.items())


def test_not_a_number_survives_in_a_tensor() -> None:
    odd = torch.tensor([math.nan, math.inf, -math.inf, -0.0])
    back = loads(dumps({"x": odd}))["x"]
    assert isinstance(back, Tensor)
    assert torch.equal(back.view(torch.int32), odd.view(torch.int32))


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
    back = loads(dumps(tree))
    for key, value in tree.items():
        assert _equal(value.detach() if isinstance(value, Tensor) else value, back[key]), key


def test_equal_trees_have_equal_bytes() -> None:
    tree = {"model": random_state(), "n": 3, "x": torch.ones(2)}
    assert len({dumps(tree) for _ in range(20)} | {dumps(loads(dumps(tree))) for _ in range(20)}) == 1
    assert dumps(tree) != dumps(tree | {"n": 4})


def test_no_pickle_in_the_bytes() -> None:
    with pytest.raises(TypeError):
        dumps({"x": object()})  # type: ignore[dict-item]


def test_weight_on_the_wire() -> None:
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


def test_values_are_what_they_are_asked_for_as() -> None:
    tree = {"model": random_state(), "rows": torch.ones(2), "count": 3}
    assert model(tree, "model") is tree["model"]
    assert tensor(tree, "rows") is tree["rows"]
    assert number(tree, "count") == 3
    for ask, key in ((model, "rows"), (tensor, "model"), (tensor, "count"), (number, "rows")):
        with pytest.raises(TypeError, match=f"{key} is not a"):
            ask(tree, key)
