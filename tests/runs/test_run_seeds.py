"""Several seeds of one experiment."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from fedssl.runs.run_seeds import judge_runs, run_seeds

SETTINGS = """
rounds = 1
clients = 2
seed = 3
[data]
name = "fashion-mini"
[partition]
name = "iid"
share = 0.02
[method]
name = "simclr"
backbone = "cnn"
hidden = 8
dim = 4
[train]
batch = 32
[probe]
linear = false
baselines = ["random"]
"""


def test_each_seed_has_its_run_and_all_have_one_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(SETTINGS)
    runs = run_seeds("mine.toml", 2, device="cpu", quiet=True)
    assert [run.experiment.seed for run in runs] == [3, 4]
    assert [str(run.dir) for run in runs] == ["runs/mine", "runs/mine-seed4"]
    verdict = judge_runs(runs)
    assert verdict is not None
    accuracies = [run.results["table"]["this run"]["knn"]["mean"] for run in runs]
    figure = verdict.accuracies["this run"]["knn"]
    assert figure.seeds == pytest.approx(accuracies)
    assert figure.interval.estimate == pytest.approx(statistics.fmean(accuracies))
    assert figure.std == pytest.approx(statistics.stdev(accuracies))


def test_seeds_in_a_directory_are_named_by_the_seed(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(SETTINGS)
    runs = run_seeds(tmp_path / "mine.toml", 2, tmp_path / "out", "cpu", quiet=True)
    assert [run.dir.name for run in runs] == ["seed3", "seed4"]


def test_private_seeds_are_announced_to_cost_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private = "\n[privacy]\nclip = 1.0\nnoise = 1.0\n"
    group = SETTINGS.replace("dim = 4", 'dim = 4\nnorm = "group"')
    (tmp_path / "mine.toml").write_text(group + private)
    run_seeds(tmp_path / "mine.toml", 2, tmp_path / "out", "cpu", quiet=True)
    assert "all of them together cost more" in capsys.readouterr().err
