"""Bad rows among the features that clients share cost the rows, and never the model they came with."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from replay import BAD, CASES, Record, bits, recorded
from torch import Tensor

from fedssl.algorithm import ALGORITHMS, Features
from fedssl.algorithms import CCL, FedCA
from fedssl.client import Client
from fedssl.guard import Reply
from fedssl.report.progress import Lines
from fedssl.tree import Tree, tensor

SHARING = [case for case, algorithm in CASES.items() if algorithm["name"] in ("ccl", "fedca")]


def _features(record: Record) -> list[tuple[str, Features]]:
    return [(key, spec) for key, spec in record.wire.items() if isinstance(spec, Features)]


def _shared(case: str, topology: str = "star") -> tuple[Record, str, Features, Tree]:
    """A recorded round, the features that are shared in it, and what the bad client honestly sent."""
    record = recorded(case, topology)
    assert record is not None
    ((key, spec),) = _features(record)
    honest = record.replies[BAD].upload
    assert honest is not None
    return record, key, spec, honest


def _changed(record: Record, **columns: Any) -> Reply:
    reply = record.replies[BAD]
    return reply._replace(upload={**(reply.upload or {}), **columns})


def test_who_shares_features() -> None:
    """By what algorithms say of their uploads: a new one belongs into the tests below."""
    assert [case for case in CASES if (record := recorded(case)) and _features(record)] == SHARING


BROKEN: dict[str, Callable[[Tensor], Tensor]] = {
    "NaN": lambda row: row * math.nan,
    "infinity": lambda row: row / 0.0,
    "zero": lambda row: row * 0,
    "twice as long": lambda row: row * 2,
    "huge": lambda row: row * 1e30,
}


@pytest.mark.parametrize("topology", ["star", "cycle"])
@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("case", SHARING)
def test_bad_rows_are_as_if_never_sent(case: str, kind: str, topology: str) -> None:
    """The first row is broken, in the end all are: the result is that of an upload without them, to the bit."""
    record, key, spec, honest = _shared(case, topology)
    count = len(tensor(honest, key))
    assert count > 1
    for broken in (1, count):
        rows = tensor(honest, key).clone()
        rows[:broken] = BROKEN[kind](rows[:broken])
        fewer = {name: tensor(honest, name)[broken:] for name in (key, *spec.columns)}
        round = record.instead(_changed(record, **{key: rows}))
        assert bits(round) == bits(record.instead(_changed(record, **fewer)))
        assert bits(round) != bits(record.instead(record.replies[BAD]))
        said = {report.client: report.rows_left_out for report in round.reports}
        assert str(said.pop(BAD)).startswith(f"{key}: {broken} of {count} rows left out, {broken} not ")
        assert set(said.values()) == {None}
        assert not any(report.dropped for report in round.reports)


@pytest.mark.parametrize("case", SHARING)
def test_features_that_cannot_be_read_are_as_none(case: str) -> None:
    record, key, spec, honest = _shared(case)
    rows = tensor(honest, key)
    none = {name: tensor(honest, name)[:0] for name in (key, *spec.columns)}
    expected = bits(record.instead(_changed(record, **none)))
    wrong: list[Any] = [torch.cat([rows, rows], 1), rows[:, :1], rows.double(), rows[0], "rows", 1.0]
    replies = [_changed(record, **{key: value}) for value in wrong]
    replies += [_changed(record, **{name: value}) for name in spec.columns for value in (rows, "text", 3)]
    for reply in replies:
        round = record.instead(reply)
        assert bits(round) == expected
        assert [report.dropped for report in round.reports] == [None] * len(record.replies)
        assert any(": all left out, " in str(report.rows_left_out) for report in round.reports)


@pytest.mark.parametrize("case", ["fedca, small", "ccl, small"])
def test_nobody_shares_more_than_its_quota(case: str) -> None:
    record, key, spec, honest = _shared(case)
    many = {name: torch.cat(9 * [tensor(honest, name)]) for name in (key, *spec.columns)}
    round, most = record.instead(_changed(record, **many)), spec.most
    cut = {name: rows[:most] for name, rows in many.items()}
    assert bits(round) == bits(record.instead(_changed(record, **cut)))
    surplus = len(many[key]) - most
    assert f"{key}: {surplus} of {len(many[key])} rows left out, {surplus} more than {most}" in {
        report.rows_left_out for report in round.reports
    }


# -- whole runs --


def _with_nan(upload: Tree) -> Tree:
    rows: Tensor = tensor(upload, "features").clone()
    rows[:2] = math.nan
    return {**upload, "features": rows}


class BadDictionary(FedCA):
    def client(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
        upload, memory = super().client(client, message)
        return (_with_nan(upload) if client.id == "1" else upload), memory


class BadFeatures(CCL):
    def upload(self, client: Client, message: Tree) -> Tree:
        upload = super().upload(client, message)
        return _with_nan(upload) if client.id == "1" else upload


@pytest.mark.parametrize(
    ("bad", "method", "sets"),
    [
        (BadDictionary, "simclr", ["algorithm.beta=0.0", "algorithm.dictionary=12"]),
        (BadFeatures, "mocov2", ["algorithm.neighbours=3"]),
    ],
)
def test_a_run_goes_on_and_says_what_was_left_out(
    bad: Any, method: str, sets: list[str], federation: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setitem(ALGORITHMS._classes, "bad-rows", bad)
    federation.here("run", method, "algorithm.name=bad-rows", "rounds=2", *sets, quiet=False)
    for line in federation.rounds("run"):
        told = {c["client"]: c.get("rows_left_out") for c in line["clients"]}
        assert str(told["1"]).startswith("features: 2 of ")
        assert str(told["1"]).endswith(" rows left out, 2 not finite")
        assert told["0"] is told["2"] is None
        assert not any(c["dropped"] for c in line["clients"])
        assert math.isfinite(line["loss"])
    said = capsys.readouterr().err
    assert "round 2/2  3/3 clients" in said
    assert said.count(f"client 1: {told['1']}") >= 1


def test_a_round_with_rows_left_out_is_told_at_once(capsys: Any) -> None:
    lines = Lines("run", 9)
    line = {"round": 1, "loss": None, "knn": None, "failed": False, "clients": [{"client": "a", "dropped": None}]}
    lines.round(line)
    lines.round({**line, "round": 2})  # nothing new within a few seconds
    lines.round({**line, "round": 3, "clients": [{"client": "a", "dropped": None, "rows_left_out": "x: 1 of 2"}]})
    assert capsys.readouterr().err.splitlines() == [
        "run: round 1/9  1/1 clients",
        "run: round 3/9  1/1 clients  client a: x: 1 of 2",
    ]
