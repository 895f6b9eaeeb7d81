"""Which directory a run gets: the same training is found again, another one is named after it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedssl.experiment.experiment import Experiment, load
from fedssl.runs.directories import directory_line, run_directory, suffix, training_values

DEMO = load("demo")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _start(folder: str | Path, experiment: Experiment) -> None:
    """Leave the traces of a started run."""
    root = Path(folder)
    root.mkdir(parents=True)
    (root / "experiment.toml").write_text(experiment.to_toml())
    (root / "rounds.jsonl").write_text("{}\n")


def _named(*changes: str) -> str:
    """Return the name of the directory for the demo with changes on the command line."""
    return run_directory("demo", load("demo", changes), DEMO).name


def test_an_unchanged_recipe_has_its_name() -> None:
    assert _named() == "demo"


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        (["rounds=16"], "demo-rounds16"),
        (["method=byol"], "demo-byol"),
        (["train.lr=0.01", "train.batch=64"], "demo-batch64-lr0.01"),
        (["method.augment.crop=[0.3, 1.0]"], "demo-crop0.3-1.0"),
        (["train.optimizer=sgd"], "demo-optimizer-sgd"),
        (["method.augment=microscopy"], "demo-microscopy"),
        (["method.augment.crop=[0.2, 1.0]"], "demo-grey"),  # then the views are those of a preset
        (["method.augment=xray", "train.lr=0.01"], "demo-xray-lr0.01"),
        (["method.augment=xray", "method.augment.flip=0.5"], "demo-jitter0.3-0.3-0.0-0.0"),
        (["train.deterministic=true"], "demo-deterministic"),
        (["seed=3", "clients=2", "rounds=1", "train.lr=1", "train.batch=8"], None),
    ],
)
def test_changes_are_in_the_name(changes: list[str], name: str | None) -> None:
    if name is None:
        name = "demo-seed3-rounds1-clients2-and-2-more"
    assert _named(*changes) == name


@pytest.mark.parametrize("change", ["probe.k=5", "probe.linear=false", "train.workers=2"])
def test_measuring_otherwise_is_the_same_training(change: str) -> None:
    _start("runs/demo", DEMO)
    assert _named(change) == "demo"


def test_an_edited_file_gets_another_directory() -> None:
    """Only the first run has the earlier content of the file, so the name has the changes to it."""
    _start("runs/mine", DEMO)
    edited = load("demo", ["rounds=16"])
    assert run_directory("mine", edited).name == "mine-rounds16"
    _start("runs/mine-rounds16", edited)
    assert run_directory("mine", edited).name == "mine-rounds16"
    assert run_directory("mine", DEMO).name == "mine"
    edited_again = load("demo", ["rounds=16", "train.lr=0.01"])
    assert run_directory("mine", edited_again).name == "mine-rounds16-lr0.01"


def test_changes_of_an_edited_file_are_named_relative_to_the_first_run() -> None:
    """Both the edit and --set are in the name, as if both were edits."""
    _start("runs/mine", DEMO)
    edited = load("demo", ["rounds=16"])
    changed = load("demo", ["rounds=16", "train.lr=0.01"])
    assert run_directory("mine", changed, edited).name == "mine-rounds16-lr0.01"


def test_a_new_directory_is_compared_with_the_first_run() -> None:
    first = Path("runs/demo")
    assert directory_line("demo", DEMO, first, CPU) == "run directory: runs/demo"
    # As it is recorded when a run starts: "auto" is fp32 on a CPU.
    _start(first, load("demo", ["train.precision=fp32"]))
    changed = load("demo", ["rounds=16", "method=byol"])
    new = Path("runs/demo-byol-rounds16")
    line = directory_line("demo", changed, new, CPU)
    assert line.startswith(
        "new run directory: runs/demo-byol-rounds16, which differs from runs/demo"
    )
    assert " in rounds, method, " in line
    assert "precision" not in line
    assert line.endswith("; training starts from round 0")
    _start(new, changed)
    assert directory_line("demo", changed, new, CPU) == "run directory: runs/demo-byol-rounds16"


def test_directories_with_a_hash_in_their_name_are_found() -> None:
    longer = load("demo", ["rounds=80"])
    _start(f"runs/demo-{longer.hash()[:8]}", longer)
    assert _named("rounds=80") == f"demo-{longer.hash()[:8]}"


def test_a_directory_of_an_unknown_training_is_not_used() -> None:
    root = Path("runs/demo")
    root.mkdir(parents=True)
    (root / "experiment.toml").write_text("damaged")
    (root / "rounds.jsonl").write_text("{}\n")
    assert _named() == "demo-2"


def test_an_abandoned_start_is_used_again() -> None:
    """A directory without a checkpoint or a finished round has no training in it."""
    root = Path("runs/demo")
    root.mkdir(parents=True)
    (root / "experiment.toml").write_text(load("demo", ["rounds=3"]).to_toml())
    assert _named() == "demo"


def test_equal_trainings_have_no_difference() -> None:
    assert suffix(training_values(DEMO), training_values(DEMO)) == ""
