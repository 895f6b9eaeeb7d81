"""Validation of shared features row by row: a bad row is dropped, never the model in its upload."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedssl.algorithm import Features, Spec, TensorSpec
from fedssl.core.state.layout import Entry, Layout
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, nbytes, tensor
from fedssl.engine.uploads.guard import Guard, reply_error
from fedssl.engine.uploads.records import Reply
from fedssl.engine.uploads.validate import drop_bad_rows, validation_error

LAYOUT = Layout.of([Entry("backbone.weight", (2,), "weight")])
MODEL = State(LAYOUT, torch.ones(2), torch.zeros(0, dtype=torch.int64))
WIRE: dict[str, Spec] = {
    "model": LAYOUT,
    "features": Features(2, 5, ("index",)),
    "index": TensorSpec((None,), torch.int64),
}
GOOD = [1.0, 0.0]


def upload(rows: Any, index: Any = None) -> dict[str, Any]:
    features = (
        rows
        if isinstance(rows, Tensor)
        else torch.tensor(rows, dtype=torch.float32).reshape(len(rows), 2)
    )
    numbers = torch.arange(10, 10 + len(features)) if index is None else index
    return {"model": MODEL, "features": features, "index": numbers}


@pytest.mark.rows("U9")
@pytest.mark.parametrize(
    ("rows", "kept", "reason"),
    [
        ([GOOD, [math.nan, 0], [0, 1]], [10, 12], "1 of 3 rows left out, 1 not finite"),
        ([[math.inf, 0], GOOD, [0, -math.inf]], [11], "2 of 3 rows left out, 2 not finite"),
        (
            [[0.6, 0.8], [0.6, 0.6], [3, 4]],
            [10],
            "2 of 3 rows left out, 2 not of unit length",
        ),  # lengths 1, 0.85, 5
        ([[0, 0], GOOD], [11], "1 of 2 rows left out, 1 not of unit length"),
        (
            [[1e30, 0], GOOD],
            [11],
            "1 of 2 rows left out, 1 not of unit length",
        ),  # its square overflows float32
        (
            [[1.011, 0], [1.009, 0], [0.989, 0], [0.991, 0]],
            [11, 13],
            "2 of 4 rows left out, 2 not of unit length",
        ),
        ([GOOD] * 7, [10, 11, 12, 13, 14], "2 of 7 rows left out, 2 more than 5"),
        (
            [GOOD, [math.nan, math.nan], [2, 0], GOOD, GOOD, GOOD, [math.nan, 0]],
            [10, 13, 14],
            "4 of 7 rows left out, 1 not finite, 1 not of unit length, 2 more than 5",
        ),
        ([[math.nan, 1]] * 3, [], "3 of 3 rows left out, 3 not finite"),
    ],
)
def test_bad_rows_are_left_out_with_their_numbers(rows: Any, kept: list[int], reason: str) -> None:
    before = upload(rows)
    left, why = drop_bad_rows(before, WIRE)
    assert why == f"features: {reason}"
    assert tensor(left, "index").tolist() == kept
    assert tensor(left, "features").tolist() == [before["features"][i - 10].tolist() for i in kept]
    assert left["model"] is MODEL
    assert validation_error(3, left, WIRE) is None


@pytest.mark.parametrize("rows", [[], [GOOD], [GOOD] * 5, [[0.6, -0.8], [0, -1]]])
def test_a_valid_upload_is_returned_unchanged(rows: Any) -> None:
    before = upload(rows)
    assert drop_bad_rows(before, WIRE) == (before, None)
    assert drop_bad_rows(before, WIRE)[0] is before


@pytest.mark.rows("U9")
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (upload(torch.ones(3, 4)), "features has shape (3, 4), expected (None, 2)"),
        (upload(torch.ones(3)), "features is not torch.float32 of 2 dimensions"),
        (upload(torch.eye(2).double()), "features is not torch.float32 of 2 dimensions"),
        ({**upload([GOOD]), "features": "text"}, "features is not torch.float32 of 2 dimensions"),
        (upload([GOOD], torch.tensor([1.0])), "index is not torch.int64 of 1 dimensions"),
        ({**upload([GOOD]), "index": 3}, "index is not torch.int64 of 1 dimensions"),
        (
            upload([GOOD] * 3, torch.arange(2)),
            "numbers of rows differ: {'features': 3, 'index': 2}",
        ),
    ],
)
def test_malformed_features_are_dropped_as_a_whole(wrong: dict[str, Any], reason: str) -> None:
    left, why = drop_bad_rows(wrong, WIRE)
    assert why == f"features: all left out, {reason}"
    assert (tensor(left, "features").shape, tensor(left, "index").shape) == ((0, 2), (0,))
    assert (tensor(left, "features").dtype, tensor(left, "index").dtype) == (
        torch.float32,
        torch.int64,
    )
    assert left["model"] is MODEL
    assert validation_error(3, left, WIRE) is None


@pytest.mark.parametrize("key", WIRE)
def test_a_missing_key_is_not_added(key: str) -> None:
    rest = {name: value for name, value in upload([[math.nan, 0]]).items() if name != key}
    assert validation_error(3, drop_bad_rows(rest, WIRE)[0], WIRE) == f'key "{key}" is missing'


def test_unvalidated_rows_are_refused() -> None:
    assert (
        validation_error(3, upload([[math.nan, 0]]), WIRE)
        == "features: contains NaN or infinite values"
    )


@pytest.mark.rows("U9")
@given(
    st.lists(
        st.tuples(*2 * [st.floats(width=32)]) | st.sampled_from([(1.0, 0.0), (0.6, 0.8)]),
        max_size=9,
    )
)
def test_row_by_row(rows: list[tuple[float, float]]) -> None:
    """Against a loop over rows; lengths are far from the tolerance around 1."""
    kept = [
        i
        for i, row in enumerate(rows[:5])
        if all(map(math.isfinite, row)) and abs(math.hypot(*row) - 1) <= 0.01
    ]
    left, why = drop_bad_rows(upload([list(row) for row in rows]), WIRE)
    assert tensor(left, "index").tolist() == [10 + i for i in kept]
    assert (why is None) == (len(kept) == len(rows))
    if why is not None:
        assert why.startswith(f"features: {len(rows) - len(kept)} of {len(rows)} rows left out, ")


# -- in the guard --


def received(tree: Tree) -> tuple[Tree | None, Guard]:
    guard = Guard(WIRE, 0, "a", {"a": {"model": MODEL}})
    (one,) = guard([Reply("a", 3, tree, None)])
    return one.upload, guard


def test_the_model_counts_and_the_report_names_dropped_rows() -> None:
    before = upload([GOOD, [math.nan, 0]])
    tree, guard = received(before)
    assert tree is not None
    assert tree["model"] is MODEL
    assert tensor(tree, "index").tolist() == [10]
    (report,) = guard.reports
    assert (report.dropped, report.divergence) == (None, 0)
    assert report.dropped_rows_reason == "features: 1 of 2 rows left out, 1 not finite"
    assert report.bytes_up == nbytes(before) == 8 + 2 * 8 + 2 * 8  # as it came


def test_without_bad_rows_the_report_is_empty() -> None:
    assert received(upload([GOOD]))[1].reports[0].dropped_rows_reason is None


def test_a_model_that_is_not_finite_is_refused_whatever_its_features_are() -> None:
    broken = State(LAYOUT, torch.tensor([1.0, math.nan]), MODEL.counts)
    for rows in ([GOOD], [[math.nan, 0]]):
        tree, guard = received({**upload(rows), "model": broken})
        assert tree is None
        assert (guard.reports[0].dropped, guard.reports[0].dropped_rows_reason) == (
            "model: contains NaN or infinite values",
            None,
        )


def test_bad_rows_do_not_make_a_reply_unsound() -> None:
    """On Flower the reply counts for the quorum, as it counts for the mean."""
    assert reply_error(Reply("a", 3, upload([[math.nan, 0]]), None), WIRE) is None
    assert reply_error(Reply("a", 3, upload(torch.ones(3, 4)), None), WIRE) is None
    assert (
        reply_error(Reply("a", 0, upload([GOOD]), None), WIRE)
        == "claims 0 images, not an integer from 1 to 10,000,000"
    )
