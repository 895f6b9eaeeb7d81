"""Summaries of run directories: state, accuracy, time and differences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_runs import fake_run

from fedssl.core.errors import ConfigError
from fedssl.core.files.checked_lines import append
from fedssl.core.files.lock import locked_directory
from fedssl.experiment.experiment import load
from fedssl.runs.comparable import unusual_probes
from fedssl.runs.summary import find_runs, nearest_differences, summarise


def _run(folder: Path, rounds: int, *changes: str, linear: float | None = None) -> Path:
    """Write a run directory with finished rounds of two seconds each."""
    experiment = load("demo", ["rounds=3", *changes])
    folder.mkdir(parents=True)
    (folder / "experiment.toml").write_text(experiment.to_toml())
    for number in range(rounds):
        line = json.dumps({"round": number + 1, "seconds": 2.0}).encode() + b"\n"
        append(folder / "rounds.jsonl", number, line)
    if linear is not None:
        table = {"this run": {"linear": {"mean": linear}}}
        (folder / "results.json").write_text(json.dumps({"rounds": 3, "table": table}))
    return folder


def test_a_finished_run(tmp_path: Path) -> None:
    summary = summarise(_run(tmp_path / "a", 3, linear=71.5))
    assert (summary.state, summary.seconds) == ("finished", 6.0)
    assert (summary.accuracy("linear"), summary.accuracy("knn")) == (71.5, None)


def test_runs_that_are_not_finished(tmp_path: Path) -> None:
    assert summarise(_run(tmp_path / "a", 2)).state == "stopped, 2 of 3"
    assert summarise(_run(tmp_path / "b", 3)).state == "not measured"
    with locked_directory(tmp_path / "a"):
        assert summarise(tmp_path / "a").state == "running, 2 of 3"


def test_each_run_is_compared_with_the_most_similar_one_before_it(tmp_path: Path) -> None:
    folders = [
        _run(tmp_path / "a", 3),
        _run(tmp_path / "b", 3, "train.lr=0.01"),
        _run(tmp_path / "c", 3, "train.lr=0.01", "seed=1"),
    ]
    assert nearest_differences([summarise(folder) for folder in folders]) == [
        ("", ""),
        ("train.lr=0.01", "a"),
        ("seed=1", "b"),
    ]


def test_views_are_named_by_their_preset(tmp_path: Path) -> None:
    """Another preset is one difference, so that the second run is the most similar to the third."""
    folders = [
        _run(tmp_path / "a", 3),
        _run(tmp_path / "b", 3, "method.augment=photo", "train.lr=0.01"),
        _run(tmp_path / "c", 3, "method.augment=xray", "train.lr=0.01"),
        _run(tmp_path / "d", 3, "method.augment=xray", "train.lr=0.01", "method.augment.flip=1"),
    ]
    assert nearest_differences([summarise(folder) for folder in folders]) == [
        ("", ""),
        ("views photo, train.lr=0.01", "a"),
        ("views xray", "b"),
        ("method.augment.flip=1.0", "c"),
    ]


def test_runs_are_found_in_a_folder(tmp_path: Path) -> None:
    run = _run(tmp_path / "a", 1)
    (tmp_path / "empty").mkdir()
    assert find_runs(tmp_path) == find_runs(run) == [run]


def test_the_command_lists_runs(tmp_path: Path, cli: Any) -> None:
    _run(tmp_path / "first", 3, linear=71.5)
    _run(tmp_path / "second", 1, "train.lr=0.01")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/experiment.toml").write_text("x")
    code, out, err = cli("runs", str(tmp_path))
    assert code == 0
    rows = [line.split() for line in out.splitlines() if line.strip()][-2:]
    assert rows[0][:4] == ["first", "finished", "71.5", "6"]
    assert rows[1][0] == "second"
    assert rows[1][-1] == "train.lr=0.01"
    assert "broken" in err
    code, out, _ = cli("runs", str(tmp_path), "--json")
    assert [run["state"] for run in json.loads(out)] == ["finished", "stopped, 1 of 3"]


def test_runs_measured_with_other_probe_settings_are_marked(tmp_path: Path, cli: Any) -> None:
    """The demo has probe.k = 20, probe.labels = 100 and probe.epochs = 500."""
    _run(tmp_path / "a", 3, "probe.k=5", linear=70.0)
    _run(tmp_path / "b", 3, "probe.every=1", linear=71.0)
    _run(tmp_path / "c", 3, "train.lr=0.01", linear=72.0)
    _run(tmp_path / "d", 3, "probe.k=7")  # not measured: it has no accuracy to mark
    lines = _listed(tmp_path, cli)
    shown = {name: next(line for line in lines if line.split()[0] == name) for name in "abcd"}
    assert " 70.0* " in shown["a"]
    assert " 71.0  " in shown["b"]
    assert "".join(shown[name] for name in "bcd").count("*") == 0
    assert lines[-2:] == [
        "* measured with probe.k = 5 (others: 20)",
        "`fedssl compare` compares only runs that were measured with the same settings",
    ]
    _run(tmp_path / "e", 3, "probe.labels=50", "probe.epochs=9", linear=73.0)
    assert _listed(tmp_path, cli)[-3:-1] == [
        "* a: measured with probe.k = 5 (others: 20)",
        "* e: measured with probe.epochs = 9 (others: 500), probe.labels = 50 (others: 100)",
    ]
    _, out, _ = cli("runs", str(tmp_path), "--json")
    found = {Path(run["dir"]).name: run["probe_differs_in"] for run in json.loads(out)}
    assert found["a"] == "probe.k = 5 (others: 20)"
    assert found["b"] == found["c"] == found["d"] == ""


def _listed(folder: Path, cli: Any) -> list[str]:
    """Return the lines of `fedssl runs` that are not empty."""
    code, out, _ = cli("runs", str(folder))
    assert code == 0
    return [line for line in out.splitlines() if line.strip()]


def test_the_first_of_equally_common_probe_settings_is_not_marked(tmp_path: Path) -> None:
    folders = [
        _run(tmp_path / "a", 3, "probe.lr=0.5", linear=70.0),
        _run(tmp_path / "b", 3, linear=70.0),
    ]
    assert unusual_probes([summarise(folder) for folder in folders]) == [
        "",
        "probe.lr not set (others: 0.5)",
    ]


def test_runs_on_other_test_images_are_not_marked(tmp_path: Path) -> None:
    folders = [
        fake_run(tmp_path / "a", "probe.k=5", test_images="one"),
        fake_run(tmp_path / "b", test_images="two"),
    ]
    assert unusual_probes([summarise(folder) for folder in folders]) == ["", ""]


def test_a_folder_without_runs(tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the default folder is made by `fedssl run`."""
    monkeypatch.chdir(tmp_path)
    code, _, err = cli("runs", str(tmp_path))
    assert (code, "there is no run directory in" in err) == (ConfigError.exit_code, True)
    code, _, err = cli("runs", "missing")
    assert (code, err) == (ConfigError.exit_code, "fedssl: there is no folder missing\n")
    code, _, err = cli("runs")
    assert (code, "`fedssl run` creates it" in err) == (ConfigError.exit_code, True)
