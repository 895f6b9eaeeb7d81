"""For every registered algorithm: with an invalid reply of one client, the others' result equals,
to the last bit, that of a round without this client.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from replay import BAD, CASES, CLIENTS, Record, bits, models, recorded

from fedssl.algorithm import ALGORITHMS, Features
from fedssl.core.state.layout import PARAMETERS, Entry, Layout
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, Value
from fedssl.engine.uploads.records import Reply

Mutation = Callable[[Reply, Tree], Iterator[Reply]]
OTHER_PEERS = ("complete", "random")


def _with(reply: Reply, key: str, value: Value | None) -> Reply:
    """Return the reply with another value under a key of its upload, or without that key."""
    assert reply.upload is not None
    rest = {name: old for name, old in reply.upload.items() if name != key}
    return reply._replace(upload=rest if value is None else {**rest, key: value})


def _each_model(change: Callable[[State], Value]) -> Mutation:
    """Return a mutation that yields one reply for each model of the upload, with that model
    changed.
    """

    def mutate(reply: Reply, sent: Tree) -> Iterator[Reply]:
        for key, state in models(reply.upload or {}).items():
            yield _with(reply, key, change(state))

    return mutate


def _poisoned(state: State, position: int, value: float) -> State:
    floats = state.floats.clone()
    floats[position] = value
    return replace(state, floats=floats)


def _relaid(state: State, change: Callable[[tuple[Entry, ...]], tuple[Entry, ...]]) -> State:
    return State.empty(Layout(change(state.layout.entries)))


def _exploded(times: float) -> Mutation:
    """Return a mutation that multiplies the update of all parameters. Running statistics are
    unchanged: a variance that moved as far would be negative, and dropped for that.
    """

    def mutate(reply: Reply, sent: Tree) -> Iterator[Reply]:
        for key, back in models(reply.upload or {}).items():
            if isinstance(start := sent.get(key), State):
                start = start.restricted(back.layout)
                parameters = slice(back.layout.pick(None, PARAMETERS).floats)  # they come first
                far = back.floats.clone()
                far[parameters] = (start.floats + times * (back.floats - start.floats))[parameters]
                reply = _with(reply, key, replace(back, floats=far))
        yield reply

    return mutate


def _each_key_missing(reply: Reply, sent: Tree) -> Iterator[Reply]:
    return (_with(reply, key, None) for key in reply.upload or {})


def _claims(images: Any) -> Mutation:
    return lambda reply, sent: iter([reply._replace(images=images)])


MUTATIONS: dict[str, tuple[Mutation, str]] = {
    "NaN in the first number": (
        _each_model(lambda s: _poisoned(s, 0, math.nan)),
        "contains NaN or infinite values",
    ),
    "NaN in the last number": (
        _each_model(lambda s: _poisoned(s, -1, math.nan)),
        "contains NaN or infinite values",
    ),
    "infinity": (
        _each_model(lambda s: _poisoned(s, 1, math.inf)),
        "contains NaN or infinite values",
    ),
    "minus infinity": (
        _each_model(lambda s: _poisoned(s, 1, -math.inf)),
        "contains NaN or infinite values",
    ),
    "a thousand times as far": (_exploded(1e3), "the norm of its update is"),
    "1e30 times as far": (_exploded(1e30), "the norm of its update is"),
    "extra key": (
        lambda reply, sent: iter([_with(reply, "more", torch.zeros(1))]),
        "is not expected",
    ),
    "missing key": (_each_key_missing, "is missing"),
    "no model": (_each_model(lambda s: s.floats), "is not a model"),
    "missing entry": (_each_model(lambda s: _relaid(s, lambda e: e[1:])), "is missing"),
    "extra entry": (
        _each_model(lambda s: _relaid(s, lambda e: (*e, Entry("x", (1,), "weight")))),
        "is not expected",
    ),
    "wrong shape": (
        _each_model(lambda s: _relaid(s, lambda e: (e[0]._replace(shape=(1,)), *e[1:]))),
        "has shape (1,)",
    ),
    "a row that would broadcast": (
        _each_model(lambda s: replace(s, floats=s.floats[:1])),
        "its float row",
    ),
    "wrong dtype": (_each_model(lambda s: replace(s, floats=s.floats.half())), "its float row"),
    "wrong dtype of counters": (
        _each_model(lambda s: replace(s, counts=s.counts.float())),
        "its counter row",
    ),
    "-5 images": (_claims(-5), "claims -5 images"),
    "0 images": (_claims(0), "claims 0 images"),
    "NaN images": (_claims(math.nan), "claims nan images"),
    "1e9 images": (_claims(1e9), "claims 1000000000.0 images"),
    "a billion images": (_claims(10**9), "claims 1000000000 images"),
    "images in words": (_claims("many"), "claims 'many' images"),
    "stale": (lambda reply, sent: iter([reply._replace(round=0)]), "answers round 1 in round 2"),
    "no upload": (lambda reply, sent: iter([reply._replace(upload=None)]), "is missing"),
    "an error": (lambda reply, sent: iter([reply._replace(upload=None, error="ill")]), "ill"),
}


def recorded_round(case: str, topology: str = "star") -> Record:
    record = recorded(case, topology)
    assert record is not None
    return record


@pytest.mark.rows("U1", "U5", "U6")
@pytest.mark.parametrize("mutation", MUTATIONS)
@pytest.mark.parametrize("case", CASES)
def test_a_bad_reply_equals_a_missing_one(case: str, mutation: str) -> None:
    record, (mutate, reason) = recorded_round(case), MUTATIONS[mutation]
    expected, replies = (
        bits(record.without(BAD)),
        list(mutate(record.replies[BAD], record.sent(BAD))),
    )
    assert replies
    for reply in replies:
        round = record.instead(reply)
        assert bits(round) == expected
        dropped = {report.client: report.dropped for report in round.reports}
        assert reason in str(dropped.pop(BAD))
        assert dropped == dict.fromkeys(c for c in record.replies if c != BAD)


@pytest.mark.parametrize("case", CASES)
def test_the_bad_client_matters(case: str) -> None:
    """Otherwise the test above could not fail."""
    record = recorded_round(case)
    assert len(record.replies) == CLIENTS
    assert bits(record.instead(record.replies[BAD])) != bits(record.without(BAD))


@pytest.mark.rows("U7")
@pytest.mark.parametrize("case", CASES)
def test_only_the_first_reply_of_this_round_counts(case: str) -> None:
    """A duplicate, a second upload, a replay of the last round's reply and an unknown client's, at
    any position.
    """
    record = recorded_round(case)
    honest, reply = list(record.replies.values()), record.replies[BAD]
    (far,) = _exploded(2)(reply, record.sent(BAD))
    expected = bits(record.play(honest))
    old = record.first[BAD]._replace(round=0)
    for more in (reply, far, old, far._replace(client="stranger")):
        played = [record.play([*honest, more])]
        if more is not reply and more is not far:  # the first reply of this client in this round
            played.append(record.play([more, *honest]))
        for round in played:
            assert bits(round) == expected
            assert sum(report.dropped is not None for report in round.reports) == 1


@pytest.mark.parametrize("value", [-1, 10**6, math.nan, math.inf, "0", True, 0.5])
def test_a_number_with_few_valid_values(value: Any) -> None:
    tried = [
        (case, key)
        for case in CASES
        for key, spec in recorded_round(case).schema.items()
        if isinstance(spec, range)
    ]
    assert ("featarc", "cluster") in tried
    for case, key in tried:
        record = recorded_round(case)
        round = record.instead(_with(record.replies[BAD], key, value))
        assert bits(round) == bits(record.without(BAD))
        assert [report.client for report in round.reports if report.dropped] == [BAD]


@pytest.mark.parametrize(
    "topology", ["cycle", *(pytest.param(t, marks=pytest.mark.slow) for t in OTHER_PEERS)]
)
@pytest.mark.parametrize(
    "case", [case for case, values in CASES.items() if not ALGORITHMS[values["name"]].needs_server]
)
def test_peers_are_protected_like_a_server(case: str, topology: str) -> None:
    """A bad reply equals a missing one for the neighbours and for the client's own site."""
    record = recorded_round(case, topology)
    ill = record.instead(Reply(BAD, 0, None, None, "ill"))
    assert bits(record.instead(record.replies[BAD])) != bits(ill)
    for mutate, _ in MUTATIONS.values():
        for reply in mutate(record.replies[BAD], record.sent(BAD)):
            assert bits(record.instead(reply)) == bits(ill)


# -- generated ones --

SCALARS = st.one_of(st.integers(), st.floats(), st.text(max_size=5), st.booleans())
NO_COUNTS = st.one_of(
    st.integers(max_value=0),
    st.integers(min_value=10**7 + 1),
    st.floats(),
    st.text(max_size=5),
    st.booleans(),
)
DTYPES = [torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.bool]


def _strict(record: Record) -> list[str]:
    """Return the keys whose corruption drops the whole upload; for features only rows are
    dropped.
    """
    loose = {
        k
        for key, spec in record.schema.items()
        if isinstance(spec, Features)
        for k in (key, *spec.columns)
    }
    return [key for key in record.schema if key not in loose]


@st.composite
def corrupted(draw: st.DrawFn, record: Record, reply: Reply) -> Reply:
    """Draw a reply with one corruption."""
    found = models(reply.upload or {})
    key = draw(st.sampled_from(sorted(found)))
    state, kind = found[key], draw(st.integers(0, 9))
    if kind == 0:
        value = draw(st.sampled_from([math.nan, math.inf, -math.inf]))
        return _with(
            reply, key, _poisoned(state, draw(st.integers(0, len(state.floats) - 1)), value)
        )
    if kind == 1:
        return reply._replace(images=draw(NO_COUNTS))
    if kind == 2:
        return _with(reply, draw(st.sampled_from(sorted(record.schema))), None)
    if kind == 3:
        return _with(
            reply,
            draw(st.text(max_size=5).filter(lambda name: name not in record.schema)),
            draw(SCALARS),
        )
    if kind == 4:
        return _with(
            reply, key, replace(state, floats=state.floats.to(draw(st.sampled_from(DTYPES))))
        )
    if kind == 5:
        return _with(
            reply,
            key,
            replace(state, floats=state.floats[: draw(st.integers(0, len(state.floats) - 1))]),
        )
    if kind == 6:
        return next(_exploded(10 ** draw(st.floats(3, 38)))(reply, record.sent(reply.client)))
    if kind == 7:
        return reply._replace(round=draw(st.integers().filter(lambda round: round != 1)))
    if kind == 8:
        entry = draw(st.sampled_from(state.layout.entries))
        return _with(
            reply, key, _relaid(state, lambda entries: tuple(e for e in entries if e != entry))
        )
    nothing = draw(st.one_of(st.floats(), st.text(max_size=5), st.booleans()))
    return _with(reply, draw(st.sampled_from(sorted(_strict(record)))), nothing)


@pytest.mark.rows("U1", "U5", "U6")
@given(st.data(), st.sampled_from(sorted(CASES)), st.integers(0, CLIENTS - 1))
@settings(max_examples=500)
def test_five_hundred_generated_replies(data: st.DataObject, case: str, client: int) -> None:
    record = recorded_round(case)
    whom = list(record.replies)[client]
    round = record.instead(data.draw(corrupted(record, record.replies[whom])))
    assert [report.client for report in round.reports if report.dropped] == [whom]
    assert bits(round) == bits(record.without(whom))
