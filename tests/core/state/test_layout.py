"""Positions of entries, against plain loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedssl.core.state.layout import Entry, Layout, matching_float_slices, shared_slices

ROLES = ("weight", "norm", "statistic", "buffer", "counter")


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Draw up to a dozen small entries in three parts, in the order of a model."""
    names = draw(
        st.lists(
            st.sampled_from([f"{p}.{i}" for p in "abc" for i in range(5)]), max_size=12, unique=True
        )
    )
    shapes = st.lists(st.integers(0, 3), max_size=4).map(tuple)
    return Layout.of(Entry(name, draw(shapes), draw(st.sampled_from(ROLES))) for name in names)


def test_offsets_by_hand() -> None:
    """Parameters first (2·3 weights, then 4 of a norm layer), then statistics and buffers; counters
    apart.
    """
    layout = Layout.of(
        [
            Entry("b.queue", (5,), "buffer"),
            Entry("a.count", (), "counter"),
            Entry("a.mean", (4,), "statistic"),
            Entry("a.weight", (2, 3), "weight"),
            Entry("b.pointer", (2,), "counter"),
            Entry("a.scale", (4,), "norm"),
        ]
    )
    assert layout.offsets == {
        "a.weight": 0,
        "a.scale": 6,
        "a.mean": 10,
        "b.queue": 14,
        "a.count": 0,
        "b.pointer": 1,
    }
    assert (layout.floats, layout.counts, layout.parts) == (19, 3, ("a", "b"))


@given(layouts())
def test_entries_tile_the_rows(layout: Layout) -> None:
    for integer, length in ((False, layout.floats), (True, layout.counts)):
        taken: list[int] = []
        for entry in layout.entries:
            if (entry.role == "counter") == integer:
                start = layout.offsets[entry.name]
                taken += range(start, start + math.prod(entry.shape))
        assert sorted(taken) == list(range(length))


@given(layouts())
def test_an_optimizer_sees_one_slice(layout: Layout) -> None:
    parameters = [e.role in ("weight", "norm") for e in layout.entries]
    assert parameters == sorted(parameters, reverse=True)


@given(
    layouts(),
    st.sets(st.sampled_from("abc")),
    st.sets(st.sampled_from(ROLES)),
    st.booleans(),
    st.data(),
)
def test_shared_slices_copy_the_same_as_a_loop(
    layout: Layout, parts: set[str], roles: set[str], shuffled: bool, data: st.DataObject
) -> None:
    """Also if the same entries are stored in another order."""
    inner = layout.pick(parts, roles)
    if shuffled:
        inner = Layout(tuple(data.draw(st.permutations(inner.entries))))
    rows = {False: torch.arange(layout.floats), True: torch.arange(layout.counts)}
    copied = {False: torch.full((inner.floats,), -1), True: torch.full((inner.counts,), -1)}
    for integer, a, b, length in shared_slices(layout, inner):
        copied[integer][b : b + length] = rows[integer][a : a + length]
    for entry in inner.entries:
        integer = entry.role == "counter"
        a = layout.offsets[entry.name]
        b = inner.offsets[entry.name]
        assert torch.equal(copied[integer][b : b + entry.size], rows[integer][a : a + entry.size])
    assert not any((row == -1).any() for row in copied.values())


@given(layouts())
def test_a_whole_layout_is_one_slice_of_each_kind(layout: Layout) -> None:
    assert len(shared_slices(layout, layout)) == len({e.role == "counter" for e in layout.entries})


def test_shared_slices_refuse_other_shapes() -> None:
    outer = Layout.of([Entry("a.w", (2, 3), "weight")])
    with pytest.raises(KeyError, match=r"a\.v"):
        shared_slices(outer, Layout.of([Entry("a.v", (2, 3), "weight")]))
    for other in (Entry("a.w", (3, 2), "weight"), Entry("a.w", (2, 3), "counter")):
        with pytest.raises(ValueError, match=r"a\.w"):
            shared_slices(outer, Layout.of([other]))


@given(layouts())
def test_a_prefix_can_be_added_and_removed(layout: Layout) -> None:
    prefixed = layout.with_prefix("target")
    assert all(e.part == "target" for e in prefixed.entries)
    assert prefixed.without_prefix("target") == layout
    assert list(prefixed.offsets.values()) == list(layout.offsets.values())


def test_a_prefix_is_a_whole_word() -> None:
    layout = Layout.of([Entry("targets.w", (1,), "weight"), Entry("target.w", (1,), "weight")])
    assert [e.name for e in layout.without_prefix("target").entries] == ["targets.w", "w"]


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        ([Entry("a.w", (2,), "weight"), Entry("a.b", (2,), "weight")], None),
        ([Entry("a.w", (2,), "weight")], "a.b is missing"),
        ([Entry(f"a.{n}", (2,), "weight") for n in "wbx"], "a.x is not expected"),
        (
            [Entry("a.w", (3,), "weight"), Entry("a.b", (2,), "weight")],
            "a.w has shape (3,), expected (2,)",
        ),
        (
            [Entry("a.w", (2,), "weight"), Entry("a.b", (2,), "norm")],
            "a.b is a norm, expected a weight",
        ),
        (
            [Entry("a.b", (2,), "weight"), Entry("a.w", (2,), "weight")],
            "the entries are in another order",
        ),
    ],
)
def test_the_first_difference_is_named(entries: list[Entry], sentence: str | None) -> None:
    mine = Layout.of([Entry("a.w", (2,), "weight"), Entry("a.b", (2,), "weight")])
    assert mine.first_difference(Layout.of(entries)) == sentence


@given(layouts(), st.sets(st.sampled_from("abc")), st.data())
def test_matching_slices_pair_entries_of_the_same_name(
    layout: Layout, parts: set[str], data: st.DataObject
) -> None:
    """Also between rows with further entries, each in a different order."""
    one, other = (Layout(tuple(data.draw(st.permutations(layout.entries)))) for _ in range(2))
    inner = layout.pick(parts)
    pairs = {
        (a + i, b + i)
        for a, b, length in matching_float_slices(one, other, inner)
        for i in range(length)
    }
    floats = [e for e in inner.entries if e.role != "counter"]
    assert pairs == {
        (one.offsets[e.name] + i, other.offsets[e.name] + i) for e in floats for i in range(e.size)
    }


@given(layouts())
def test_a_whole_layout_matches_itself_in_one_slice(layout: Layout) -> None:
    assert matching_float_slices(layout, layout, layout) == (
        ((0, 0, layout.floats),) if layout.floats else ()
    )


@given(layouts())
def test_equal_layouts_share_cached_results(layout: Layout) -> None:
    """Results cached for one layout are used for an equal one."""
    again = Layout(tuple(Entry(*entry) for entry in layout.entries))
    assert (again, hash(again)) == (layout, hash(layout))
    assert again.pick(["a", "b"], ("weight",)) is layout.pick({"b", "a"}, ["weight"])
    assert again.with_prefix("target") is layout.with_prefix("target")
