"""Twelve kinds of invalid uploads, and the exact mean of the valid ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedssl.algorithm import Spec, TensorSpec, Upload
from fedssl.algorithms import FedAvg
from fedssl.core.state.layout import Entry, Layout
from fedssl.core.state.mean import Mean
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, model, nbytes
from fedssl.engine.uploads.guard import Guard, reply_error
from fedssl.engine.uploads.records import Reply, loggable_notes, sanitize
from fedssl.engine.uploads.validate import check_update
from fedssl.training.trainer import Metrics

LAYOUT = Layout.of(
    [
        Entry("backbone.weight", (3, 2), "weight"),
        Entry("backbone.mean", (2,), "statistic"),
        Entry("projector.weight", (4,), "weight"),
        Entry("backbone.count", (), "counter"),
    ]
)
METRICS = Metrics(1.0, 2, 3, 4.0, 0.5, 6.0)


def valid_state(seed: int) -> State:
    return State(
        LAYOUT,
        torch.randn(LAYOUT.floats, generator=torch.Generator().manual_seed(seed)),
        torch.tensor([seed]),
    )


SENT: Tree = {"model": valid_state(99)}
CLIENTS = ["c0", "c1", "bad", "c2", "c3"]


def guard(schema: dict[str, Spec] | None = None, sent: Tree = SENT) -> Guard:
    return Guard(schema or {"model": LAYOUT}, 0, CLIENTS, dict.fromkeys(CLIENTS, sent))


def passed(g: Guard, replies: Iterable[Reply]) -> list[tuple[str, int, Tree]]:
    """Return (client, images, tree) of the replies that are not dropped."""
    return [(c.client, c.images, c.upload) for c in g(replies) if c.upload is not None]


def fault(upload: Tree, images: Any = 1, schema: dict[str, Spec] | None = None) -> str | None:
    """Return the reason why an upload is dropped, or None."""
    g = guard(schema)
    list(g([Reply("bad", images, upload, None)]))
    return g.reports[0].dropped


def _with(state: State, position: int, value: float) -> State:
    floats = state.floats.clone()
    floats[position] = value
    return replace(state, floats=floats)


def _relaid(*entries: Entry) -> State:
    return State.empty(Layout.of(entries))


Mutation = Callable[[State], Tree]
MUTATIONS: dict[str, tuple[Mutation, str]] = {
    "NaN in a weight": (
        lambda s: {"model": _with(s, 0, math.nan)},
        "model: contains NaN or infinite values",
    ),
    "NaN in a statistic": (
        lambda s: {"model": _with(s, -1, math.nan)},
        "model: contains NaN or infinite values",
    ),
    "Inf": (lambda s: {"model": _with(s, 3, math.inf)}, "model: contains NaN or infinite values"),
    "-Inf": (lambda s: {"model": _with(s, 3, -math.inf)}, "model: contains NaN or infinite values"),
    "Inf and -Inf": (
        lambda s: {"model": _with(_with(s, 3, math.inf), 4, -math.inf)},
        "model: contains NaN or infinite values",
    ),
    "extra key": (lambda s: {"model": s, "more": 1}, 'key "more" is not expected'),
    "missing key": (lambda s: {}, 'key "model" is missing'),
    "other key": (lambda s: {"modle": s}, 'key "model" is missing'),
    "a tensor": (lambda s: {"model": s.floats}, "model: is not a model"),
    "text": (lambda s: {"model": "weights"}, "model: is not a model"),
    "other layout": (
        lambda s: {"model": s.pick(("backbone",))},
        "model: projector.weight is missing",
    ),
    "other architecture": (
        lambda s: {
            "model": _relaid(
                *LAYOUT.entries[:-1], Entry("backbone.extra", (1,), "weight"), LAYOUT.entries[-1]
            )
        },
        "model: backbone.extra is not expected",
    ),
    "other shape": (
        lambda s: {
            "model": _relaid(Entry("backbone.weight", (2, 3), "weight"), *LAYOUT.entries[1:])
        },
        "model: backbone.weight has shape (2, 3), expected (3, 2)",
    ),
    "other role": (
        lambda s: {"model": _relaid(Entry("backbone.weight", (3, 2), "norm"), *LAYOUT.entries[1:])},
        "model: backbone.weight is a norm, expected a weight",
    ),
    "a row of one that would broadcast": (
        lambda s: {"model": replace(s, floats=torch.ones(1))},
        "model: its float row does not match its layout",
    ),
    "a row of two dimensions": (
        lambda s: {"model": replace(s, floats=s.floats[None])},
        "model: its float row does not match its layout",
    ),
    "double": (
        lambda s: {"model": replace(s, floats=s.floats.double())},
        "model: its float row does not match its layout",
    ),
    "half": (
        lambda s: {"model": replace(s, floats=s.floats.half())},
        "model: its float row does not match its layout",
    ),
    "short counters": (
        lambda s: {"model": replace(s, counts=s.counts[:0])},
        "model: its counter row does not match its layout",
    ),
    "counters that are floats": (
        lambda s: {"model": replace(s, counts=s.counts.float())},
        "model: its counter row does not match its layout",
    ),
}
COUNTS: list[Any] = [-5, 0, math.nan, math.inf, 1e9, 10**9, 3.0, "12", "many", True, None]


def _mean(uploads: list[tuple[str, int, Tree]]) -> State:
    mean = Mean()
    for _, images, tree in uploads:
        mean.add(model(tree, "model"), images)
    return mean.result()


def _replies(bad: Reply) -> list[Reply]:
    good = [Reply(f"c{i}", 10 + i, {"model": valid_state(i)}, METRICS) for i in range(4)]
    return [*good[:2], bad, *good[2:]]


def _check(bad: Reply, reason: str, memory_advanced: bool = True) -> None:
    g = guard()
    got = passed(g, _replies(bad))
    assert [client for client, _, _ in got] == ["c0", "c1", "c2", "c3"]
    others = _mean([(f"c{i}", 10 + i, {"model": valid_state(i)}) for i in range(4)])
    assert torch.equal(_mean(got).floats, others.floats)
    assert torch.equal(_mean(got).counts, others.counts)
    report = g.reports[2]
    assert (report.client, report.dropped, report.metrics) == ("bad", reason, None)
    assert (report.bytes_down, report.bytes_up, report.memory_advanced) == (
        nbytes(SENT),
        0,
        memory_advanced,
    )
    assert not any(r.memory_advanced for r in g.reports if r.client != "bad")
    assert [r.dropped for r in g.reports if r.client != "bad"] == [None] * 4


@pytest.mark.rows("U1", "U5")
@pytest.mark.parametrize("name", MUTATIONS)
def test_an_invalid_upload_is_dropped_and_the_mean_of_the_others_is_exact(name: str) -> None:
    mutate, reason = MUTATIONS[name]
    _check(Reply("bad", 12, mutate(valid_state(7)), METRICS), reason)


@pytest.mark.rows("U6")
@pytest.mark.parametrize("images", COUNTS)
def test_an_invalid_number_of_images(images: Any) -> None:
    _check(
        Reply("bad", images, {"model": valid_state(7)}, METRICS),
        f"claims {images!r} images, not an integer from 1 to 10,000,000",
    )


def test_the_error_of_a_failed_client_is_the_reason() -> None:
    _check(
        Reply("bad", 0, None, None, "too few images: 1"), "too few images: 1", memory_advanced=False
    )
    _check(Reply("bad", 12, None, None), 'key "model" is missing', memory_advanced=False)


@pytest.mark.rows("U1")
@given(st.integers(0, LAYOUT.floats - 1), st.sampled_from([math.nan, math.inf, -math.inf]))
def test_one_bad_number_anywhere_is_found(position: int, value: float) -> None:
    assert (
        fault({"model": _with(valid_state(0), position, value)})
        == "model: contains NaN or infinite values"
    )


@pytest.mark.rows("U1")
@given(st.integers(0, LAYOUT.floats - 1), st.sampled_from([math.nan, math.inf, -math.inf]))
def test_one_bad_number_is_found_in_a_part_that_was_not_sent(position: int, value: float) -> None:
    """There is no reference for a distance, but the values are checked."""
    more: dict[str, Spec] = {"model": LAYOUT, "more": LAYOUT}
    upload = {"model": valid_state(0), "more": _with(valid_state(1), position, value)}
    assert fault(upload, schema=more) == "more: contains NaN or infinite values"


@given(st.integers(1, 10**7), st.floats(-(2.0**100), 2.0**100, width=32))
def test_all_finite_values_pass(images: int, value: float) -> None:
    """A finite value passes even if its square overflows a float32."""
    assert fault({"model": _with(valid_state(0), 2, value)}, images) is None


ROWS = TensorSpec((None, 3), torch.float32)


@pytest.mark.parametrize(
    ("spec", "value", "reason"),
    [
        (ROWS, torch.zeros(5, 3), None),
        (ROWS, torch.zeros(0, 3), None),
        (ROWS, torch.zeros(5, 4), "x: has shape (5, 4), expected (None, 3)"),
        (ROWS, torch.zeros(3), "x: is not torch.float32 of 2 dimensions"),
        (ROWS, torch.zeros(5, 3).double(), "x: is not torch.float32 of 2 dimensions"),
        (ROWS, torch.full((5, 3), math.nan), "x: contains NaN or infinite values"),
        (ROWS, 3.0, "x: is not torch.float32 of 2 dimensions"),
        (TensorSpec((2,), torch.int64), torch.tensor([1, 2]), None),
        (float, 0.5, None),
        (float, math.nan, "x: is not finite"),
        (float, -math.inf, "x: is not finite"),
        (float, "0.5", "x: is not float"),
        (float, True, "x: is not float"),
        (range(3), 2, None),
        (range(3), 3, "x: is not one of 0 … 2"),
        (range(3), -1, "x: is not one of 0 … 2"),
        pytest.param(
            range(3), 10**5000, "x: is not one of 0 … 2", id="more than Python would print"
        ),
        (range(3), 1.0, "x: is not int"),
        (range(3), True, "x: is not int"),
        (int, 3, None),
        (int, True, "x: is not int"),
        (int, 3.0, "x: is not int"),
    ],
)
@pytest.mark.rows("U1", "U5")
def test_tensors_and_scalars_in_uploads(spec: Spec, value: Any, reason: str | None) -> None:
    assert fault({"x": value}, schema={"x": spec}) == reason


def test_the_norm_of_a_valid_update() -> None:
    """From 0 to (3, 4) in two weights is a distance of 5; statistics do not count."""
    sent, back = State.empty(LAYOUT), State.empty(LAYOUT)
    back.floats[0], back.floats[1] = 3, 4
    back.view(LAYOUT.entries[2]).fill_(100)
    assert LAYOUT.entries[2].role == "statistic"
    g = guard(sent={"model": sent})
    assert [
        (received.client, received.images)
        for received in g([Reply("c0", 5, {"model": back}, METRICS)])
    ] == [("c0", 5)]
    (report,) = g.reports
    assert report.divergence == pytest.approx(5)
    assert report.metrics == METRICS
    assert (report.bytes_down, report.bytes_up) == (nbytes({"m": sent}), nbytes({"m": back}))


def test_the_norm_over_parts_that_were_sent() -> None:
    """A predictor that is not sent does not count, nor do keys that are sent in one direction
    only.
    """
    whole, part = valid_state(0), valid_state(1).pick(("projector",))
    expected = part.distance(whole).item()
    assert check_update({"model": whole, "x": 1}, {"model": part, "y": whole}) == (
        pytest.approx(expected),
        None,
    )
    assert check_update({}, {"model": part}) == (None, None)
    assert check_update({"a": whole, "b": whole}, {"a": part, "b": part})[0] == pytest.approx(
        math.sqrt(2) * expected
    )


# -- unexpected replies --


@pytest.mark.rows("U7")
def test_the_first_reply_counts() -> None:
    g = guard()
    first, second = {"model": valid_state(0)}, {"model": valid_state(1)}
    got = passed(
        g,
        [
            Reply("c0", 5, first, METRICS),
            Reply("c0", 7, second, METRICS),
            Reply("c1", 5, first, METRICS),
        ],
    )
    assert [(client, images) for client, images, _ in got] == [("c0", 5), ("c1", 5)]
    assert got[0][2] is first
    assert [(r.client, r.dropped) for r in g.reports] == [
        ("c0", None),
        ("c0", "was not asked, or has answered already"),
        ("c1", None),
    ]
    assert (g.reports[1].bytes_down, g.reports[1].bytes_up, g.reports[1].memory_advanced) == (
        0,
        0,
        False,
    )


@pytest.mark.rows("U7")
def test_a_dropped_reply_counts_as_a_reply() -> None:
    """A client cannot retry until an upload passes."""
    g = guard()
    broken = {"model": _with(valid_state(0), 0, math.nan)}
    assert (
        passed(
            g, [Reply("c0", 5, broken, METRICS), Reply("c0", 5, {"model": valid_state(0)}, METRICS)]
        )
        == []
    )


@pytest.mark.rows("U7")
def test_replies_of_other_clients_are_ignored() -> None:
    g = guard()
    assert list(g([Reply("stranger", 5, {"model": valid_state(0)}, METRICS)])) == []
    assert [(r.client, r.dropped) for r in g.reports] == [
        ("stranger", "was not asked, or has answered already")
    ]


@pytest.mark.rows("U7")
def test_a_late_reply_does_not_replace_the_right_one() -> None:
    sent = dict.fromkeys(CLIENTS, SENT)
    g = Guard({"model": LAYOUT}, 4, CLIENTS, sent)
    late, right = (
        Reply("c0", 5, {"model": valid_state(i)}, METRICS, round=r) for i, r in ((0, 2), (1, 4))
    )
    assert [tree for _, _, tree in passed(g, [late, right])] == [right.upload]
    assert [r.dropped for r in g.reports] == ["answers round 3 in round 5", None]
    assert sent.keys() == {"c1", "bad", "c2", "c3"}  # replies are not stored


def test_a_client_that_could_not_be_reached_is_reported() -> None:
    g = Guard({"model": LAYOUT}, 0, ["a"], {})
    assert [received.upload for received in g([Reply("a", 0, None, None, "never came")])] == [None]
    assert (g.reports[0].dropped, g.reports[0].bytes_down) == ("never came", 0)


def test_uploads_pass_one_by_one() -> None:
    drawn = []

    def replies():
        for i in range(3):
            drawn.append(i)
            yield Reply(f"c{i}", 1, {"model": valid_state(i)}, METRICS)

    passing = guard()(replies())
    next(passing)
    assert drawn == [0]


@pytest.mark.parametrize("name", MUTATIONS)
def test_uploads_that_pass_can_be_merged(name: str) -> None:
    """The algorithm never gets an invalid upload: its result is the mean over the others."""
    bad = Reply("bad", 12, MUTATIONS[name][0](valid_state(7)), METRICS)
    feed = (
        Upload(client, float(images), tree)
        for client, images, tree in passed(guard(), _replies(bad))
    )
    merged = FedAvg().merge(SENT, feed, Mean)
    assert torch.equal(
        model(merged, "model").floats,
        _mean([(r.client, r.images, r.upload) for r in _replies(bad) if r is not bad]).floats,
    )  # type: ignore[misc]


def test_untrusted_text_is_sanitized_and_cut_in_reports() -> None:
    """200 characters and an ellipsis; an escape sequence, a line break and U+202E are escaped."""
    assert sanitize("a\x1b[2J\n\u202eb") == "a\\x1b[2J\\n\\u202eb"
    assert sanitize("ab", 2) == "ab"
    assert sanitize("abc", 2) == "ab…"
    assert sanitize("\nb", 2) == "\\n…"
    for why in (fault({"\x1b[2J" * 9999: 1.0}), fault(SENT, images="\n" * 9999)):
        assert why is not None
        assert len(why) == 201
        assert why.isprintable()
    g = guard()
    list(g([Reply("bad", 1, None, None, "no\n" * 9999), Reply("bad", 1, None, None, round=1)]))
    assert all(report.dropped is not None and report.dropped.isprintable() for report in g.reports)


def test_notes_too_large_for_a_float_are_left_out() -> None:
    assert loggable_notes({"huge": 10**400, "nan": math.nan, "fine": 2, "a\nb": 0.5}) == {
        "fine": 2,
        "a\\nb": 0.5,
    }


def test_invalid_replies_are_detected_before_the_guard() -> None:
    broken = _with(valid_state(1), 0, math.nan)
    schema: dict[str, Spec] = {"model": LAYOUT}
    assert reply_error(Reply("a", 1, {"model": valid_state(1)}, None), schema) is None
    assert (
        reply_error(Reply("a", 0, {"model": valid_state(1)}, None), schema)
        == "claims 0 images, not an integer from 1 to 10,000,000"
    )
    assert (
        reply_error(Reply("a", 1, {"model": broken}, None), schema)
        == "model: contains NaN or infinite values"
    )
    assert reply_error(Reply("a", 1, None, None), schema) == "no upload"
    assert reply_error(Reply("a", 1, None, None, "ill"), schema) == "ill"


def test_a_norm_above_the_range_of_float32_is_not_logged() -> None:
    """1e25 squared overflows a float32, and JSON has no infinity."""
    far = State(LAYOUT, model(SENT, "model").floats + 1e25, torch.tensor([0]))
    assert check_update(SENT, {"model": far}) == (math.inf, None)
    g = guard()
    assert len(passed(g, [Reply("c0", 5, {"model": far}, METRICS)])) == 1
    assert g.reports[0].divergence is None
