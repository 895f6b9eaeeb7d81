"""Bad rows of shared features are dropped, never the model of their upload; a run that shares
features warns.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any
from unittest.mock import ANY

import pytest
import torch
from replay import BAD, CASES, Record, bits, recorded
from torch import Tensor

from fedssl.algorithm import ALGORITHMS, Features
from fedssl.algorithms import CCL, FedCA
from fedssl.core.state.tree import Tree, tensor
from fedssl.engine.uploads.records import Reply
from fedssl.runs.progress import Lines
from fedssl.runs.time_left import Pace
from fedssl.training.client import Client

SHARING = [case for case, algorithm in CASES.items() if algorithm["name"] in ("ccl", "fedca")]


def _features(record: Record) -> list[tuple[str, Features]]:
    return [(key, spec) for key, spec in record.schema.items() if isinstance(spec, Features)]


def _shared(case: str, topology: str = "star") -> tuple[Record, str, Features, Tree]:
    """Return a recorded round, its shared features, and the honest upload of the bad client."""
    record = recorded(case, topology)
    assert record is not None
    ((key, spec),) = _features(record)
    honest = record.replies[BAD].upload
    assert honest is not None
    return record, key, spec, honest


def _changed(record: Record, **columns: Any) -> Reply:
    reply = record.replies[BAD]
    return reply._replace(upload={**(reply.upload or {}), **columns})


def test_algorithms_that_share_features() -> None:
    """Determined by upload schemas: add a new algorithm to the tests below."""
    assert [case for case in CASES if (record := recorded(case)) and _features(record)] == SHARING


BROKEN: dict[str, Callable[[Tensor], Tensor]] = {
    "NaN": lambda row: row * math.nan,
    "infinity": lambda row: row / 0.0,
    "zero": lambda row: row * 0,
    "twice as long": lambda row: row * 2,
    "huge": lambda row: row * 1e30,
}


@pytest.mark.rows("U9")
@pytest.mark.parametrize("topology", ["star", "cycle"])
@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("case", SHARING)
def test_bad_rows_equal_missing_rows(case: str, kind: str, topology: str) -> None:
    """With the first row broken, and then all: the result equals that of an upload without them."""
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
        dropped = {report.client: report.dropped_rows_reason for report in round.reports}
        assert str(dropped.pop(BAD)).startswith(
            f"{key}: {broken} of {count} rows left out, {broken} not "
        )
        assert set(dropped.values()) == {None}
        assert not any(report.dropped for report in round.reports)


@pytest.mark.rows("U9")
@pytest.mark.parametrize("case", SHARING)
def test_malformed_features_equal_missing_features(case: str) -> None:
    record, key, spec, honest = _shared(case)
    rows = tensor(honest, key)
    none = {name: tensor(honest, name)[:0] for name in (key, *spec.columns)}
    expected = bits(record.instead(_changed(record, **none)))
    wrong: list[Any] = [
        torch.cat([rows, rows], 1),
        rows[:, :1],
        rows.double(),
        rows[0],
        "rows",
        1.0,
    ]
    replies = [_changed(record, **{key: value}) for value in wrong]
    replies += [
        _changed(record, **{name: value}) for name in spec.columns for value in (rows, "text", 3)
    ]
    for reply in replies:
        round = record.instead(reply)
        assert bits(round) == expected
        assert [report.dropped for report in round.reports] == [None] * len(record.replies)
        assert any(
            ": all left out, " in str(report.dropped_rows_reason) for report in round.reports
        )


@pytest.mark.rows("U9")
@pytest.mark.parametrize("case", ["fedca, small", "ccl, small"])
def test_no_client_shares_more_than_its_quota(case: str) -> None:
    record, key, spec, honest = _shared(case)
    many = {name: torch.cat(9 * [tensor(honest, name)]) for name in (key, *spec.columns)}
    round, most = record.instead(_changed(record, **many)), spec.max_rows
    cut = {name: rows[:most] for name, rows in many.items()}
    assert bits(round) == bits(record.instead(_changed(record, **cut)))
    surplus = len(many[key]) - most
    assert f"{key}: {surplus} of {len(many[key])} rows left out, {surplus} more than {most}" in {
        report.dropped_rows_reason for report in round.reports
    }


# -- whole runs --


def _with_nan(upload: Tree) -> Tree:
    rows: Tensor = tensor(upload, "features").clone()
    rows[:2] = math.nan
    return {**upload, "features": rows}


class BadDictionary(FedCA):
    def client_update(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
        upload, memory = super().client_update(client, message)
        return (_with_nan(upload) if client.id == "1" else upload), memory


class BadFeatures(CCL):
    def client_update(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
        upload, memory = super().client_update(client, message)
        return (_with_nan(upload) if client.id == "1" else upload), memory


@pytest.mark.parametrize(
    ("bad", "method", "sets"),
    [
        (BadDictionary, "simclr", ["algorithm.beta=0.0", "algorithm.dictionary=12"]),
        (BadFeatures, "mocov2", ["algorithm.neighbours=3"]),
    ],
)
def test_a_run_continues_and_reports_dropped_rows(
    bad: Any,
    method: str,
    sets: list[str],
    federation: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    monkeypatch.setitem(ALGORITHMS._classes, "bad-rows", bad)
    federation.here("run", method, "algorithm.name=bad-rows", "rounds=2", *sets, quiet=False)
    for line in federation.rounds("run"):
        dropped = {c["client"]: c.get("rows_left_out") for c in line["clients"]}
        assert str(dropped["1"]).startswith("features: 2 of ")
        assert str(dropped["1"]).endswith(" rows left out, 2 not finite")
        assert dropped["0"] is dropped["2"] is None
        assert not any(c["dropped"] for c in line["clients"])
        assert math.isfinite(line["loss"])
    stderr = capsys.readouterr().err
    assert "round 2/2  3/3 clients" in stderr
    assert stderr.count(f"client 1: {dropped['1']}") >= 1


def test_dropped_rows_are_reported_at_once(capsys: Any) -> None:
    lines = Lines("run", Pace(9))
    line = {
        "round": 1,
        "loss": None,
        "knn": None,
        "failed": False,
        "clients": [{"client": "a", "dropped": None}],
    }
    lines.round(line)
    lines.round({**line, "round": 2})  # no further message within a few seconds
    lines.round(
        {
            **line,
            "round": 3,
            "clients": [{"client": "a", "dropped": None, "rows_left_out": "x: 1 of 2"}],
        }
    )
    printed = capsys.readouterr().err.splitlines()
    assert [text.split("  ") for text in printed] == [
        ["run: round 1/9", "1/1 clients", ANY],  # the time elapsed and left
        ["run: round 3/9", "1/1 clients", ANY, "client a: x: 1 of 2"],
    ]


# -- C7: the warning --

FEDCA = (
    "simclr",
    ["algorithm.name=fedca", "algorithm.beta=0.0", "algorithm.dictionary=12"],
    "projections of private",
)
WARNED = {
    "fedca": FEDCA,
    "ccl": (
        "mocov2",
        ["algorithm.name=ccl"],
        "clients share features of images mixed as by InstaHide",
    ),
    "ccl, not mixed": (
        "mocov2",
        ["algorithm.name=ccl", "algorithm.mix=1"],
        "that are not even mixed",
    ),
}
SILENT = {
    "fedca": ("simclr", [*FEDCA[1][:2], "algorithm.dictionary=0"]),
    "ccl": ("mocov2", ["algorithm.name=ccl", "algorithm.fusion=false", "algorithm.lam=0.0"]),
    "fedavg": ("simclr", ["algorithm.name=fedavg"]),
}
Command = Callable[..., tuple[int, str, str]]


def _run(
    cli: Command, federation: Any, method: str, sets: list[str], *options: str
) -> tuple[str, str]:
    """Run in the folder `run`; return standard output and standard error."""
    code, out, err = cli(*federation.command("run", method, *sets)[3:], *options)
    assert code == 0, err
    return out, err


@pytest.mark.rows("C7")
@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("case", WARNED)
def test_shared_features_cause_a_warning_everywhere(
    case: str, quiet: bool, federation: Any, cli: Command
) -> None:
    """When a run starts and when it resumes; in its output, its log and its results; also with
    --quiet.
    """
    method, sets, words = WARNED[case]
    options = ["--quiet"] if quiet else []
    out, err = _run(cli, federation, method, [*sets, "rounds=1"], *options)
    (warning,) = [line for line in err.splitlines() if line.startswith("warning: ")]
    assert words in warning
    text = warning.removeprefix("warning: ")
    assert text in out.splitlines()
    out, err = _run(cli, federation, method, [*sets, "rounds=3"], *options)
    assert err.splitlines().count(warning) == 1
    assert ("resuming after round 1 of 3" in err) is not quiet
    assert text in out.splitlines()
    assert [line["warning"] for line in federation.rounds("run")] == [text] * 3
    results = json.loads((federation.root / "run/results.json").read_text())
    assert results["notes"].count(text) == 1
    out, _ = _run(cli, federation, method, [*sets, "rounds=3"], *options, "--json")
    assert json.loads(out)["notes"].count(text) == 1


@pytest.mark.rows("C7")
@pytest.mark.parametrize("case", WARNED)
def test_python_warns_about_shared_features_like_the_command(
    case: str, federation: Any, capsys: Any
) -> None:
    method, sets, words = WARNED[case]
    run = federation.here("run", method, *sets, "rounds=1", quiet=True)
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert line == f"warning: {run.experiment.algorithm.warning}"
    assert run.rounds[0]["warning"] in run.results["notes"]


@pytest.mark.rows("C7")
@pytest.mark.parametrize("case", SILENT)
def test_without_shared_features_there_is_no_warning(
    case: str, federation: Any, cli: Command
) -> None:
    method, sets = SILENT[case]
    out, err = _run(cli, federation, method, [*sets, "rounds=1"])
    assert "warning" not in out + err
    assert "warning" not in federation.rounds("run")[0]
    out, err = _run(cli, federation, method, [*sets, "rounds=2"], "--quiet")
    assert err == ""


@pytest.mark.rows("C7")
def test_every_algorithm_that_shares_features_has_a_warning() -> None:
    """Determined by upload schemas: add a new algorithm to the tests above."""
    for case in CASES:
        record = recorded(case)
        assert record is not None
        assert (record.algorithm.warning is not None) == bool(_features(record)), case
