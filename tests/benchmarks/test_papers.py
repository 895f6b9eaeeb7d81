"""The benchmark of published settings: a probe that fails does not lose the others."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks import papers
from fedssl.evaluation.probe_settings import with_probe_settings
from fedssl.evaluation.score import Score
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.lookup import load_values


class FakeRun:
    """A run whose fine-tuning fails; it stores what probes.json contains before each probe."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.stored: list[int] = []

    def evaluate(self, probe: str, **settings: object) -> Score:
        """Return an accuracy of 50, or raise an error that is not fedssl's."""
        stored = json.loads(self.file.read_text()) if self.file.exists() else []
        self.stored.append(len(stored))
        if probe == "semi":
            raise RuntimeError("out of memory")
        return Score({"global": 50.0})


def test_a_probe_that_fails_does_not_lose_the_others(tmp_path: Path) -> None:
    file = tmp_path / "probes.json"
    run: Any = FakeRun(file)
    also: list[papers.Probe] = [("knn", {}), ("semi", {"labels": 0.1}), ("linear", {"lr": 1.0})]
    probes = papers.measure_all(run, also, file)
    assert probes == [
        {"probe": "knn", "accuracy": 50.0, "labelled": 0},
        {"probe": "semi", "labels": 0.1, "error": "RuntimeError: out of memory"},
        {"probe": "linear", "lr": 1.0, "accuracy": 50.0, "labelled": 0},
    ]
    assert json.loads(file.read_text()) == probes
    assert run.stored == [0, 1, 2]  # written after every probe


def test_no_probes_no_file(tmp_path: Path) -> None:
    run: Any = FakeRun(tmp_path / "probes.json")
    assert papers.measure_all(run, [], tmp_path / "probes.json") == []
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("failing", [False, True])
@pytest.mark.parametrize("lbfgs", [False, True])
def test_lbfgs_is_added_once_and_errors_are_reported(
    lbfgs: bool, failing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[papers.Probe]] = []

    def run(case: papers.Case, *_: object) -> tuple[Mapping[str, Any], list[dict[str, Any]]]:
        asked.append(list(case.also))
        probes = [{"probe": "semi", "error": "no memory"}] if failing else []
        return {"table": {"this run": {}}}, probes

    groups = {
        "g": {"plain": papers.Case("demo"), "more": papers.Case("demo", also=papers.ALL_PROBES)}
    }
    monkeypatch.setattr(papers, "GROUPS", groups)
    monkeypatch.setattr(papers, "run", run)
    options = ["--lbfgs"] if lbfgs else []
    monkeypatch.setattr(sys, "argv", ["papers", "g", "--out", str(tmp_path), *options])
    if failing:
        with pytest.raises(SystemExit, match=r"^2 probes failed"):
            papers.main()
    else:
        papers.main()
    assert asked == [[papers.LBFGS] if lbfgs else [], papers.ALL_PROBES]


@pytest.mark.parametrize("name", papers.GROUPS["cifar10"])
def test_the_settings_of_the_probes_are_accepted(name: str) -> None:
    case = papers.GROUPS["cifar10"][name]
    recipe = Experiment.from_dict(load_values(case.recipe))
    experiment = recipe.with_changes({**papers.FIXED, **case.changes})
    protocols = set()
    for probe, settings in case.also:
        protocols.add((probe, with_probe_settings(experiment, probe, settings).probe.protocol))
    for probe in ("linear", "semi"):
        assert {(probe, "fedema"), (probe, "easyfl")} <= protocols


SHORT_AND_FEDCA = [
    (group, name) for group in ("cifar10-short", "fedca-table-1") for name in papers.GROUPS[group]
]


@pytest.mark.parametrize(("group", "name"), SHORT_AND_FEDCA)
def test_runs_have_the_settings_of_their_case(group: str, name: str) -> None:
    case = papers.GROUPS[group][name]
    recipe = Experiment.from_dict(load_values(case.recipe))
    experiment = recipe.with_changes({**papers.FIXED, **case.changes})
    for key, value in case.changes.items():
        table, setting = key.split(".")
        if setting != "name":
            assert getattr(getattr(experiment, table), setting) == value
    others = [other for other in papers.GROUPS[group].values() if other is not case]
    assert (case.recipe, case.changes) not in [(other.recipe, other.changes) for other in others]
