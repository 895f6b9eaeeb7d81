"""The command on a page runs the same experiment."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from factories import make_experiment
from fake_runs import fake_run

from fedssl.experiment.experiment import Experiment, load
from fedssl.pages.report.command import command_again, recipe_command


@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["rounds=8", "method.augment.crop=[0.2, 1.0]", "seed=3"],
        ["probe.baselines=[]", "probe.picture=false", "train.lr=0.01"],
    ],
)
def test_the_command_gives_the_same_experiment(changes: list[str]) -> None:
    experiment = load("demo", changes)
    words = recipe_command(experiment)
    assert words is not None
    assert words[:3] == ["fedssl", "run", "demo"]
    assert load(words[2], words[4::2]).to_dict() == experiment.to_dict()


def test_an_experiment_far_from_every_recipe_is_run_from_its_file(tmp_path: Path) -> None:
    keys = ("hidden=32", "dim=16", "temperature=0.3")
    changes = [f"method.{key}" for key in keys]
    changes += ["train.lr=0.1", "train.batch=32", "rounds=2", "clients=4", "seed=9"]
    folder = fake_run(tmp_path / "run", *changes)
    command = command_again(Experiment.from_file(folder / "experiment.toml"), folder, "cpu")
    assert command.text == "fedssl run experiment.toml --device cpu"


def test_modules_of_the_user_are_imported_and_quoted(tmp_path: Path) -> None:
    folder = fake_run(tmp_path / "run")
    (folder / "imports.json").write_text(json.dumps({"my method.py": "0"}))
    command = command_again(load("demo"), folder, None)
    assert shlex.split(command.text) == [
        "fedssl",
        "run",
        "experiment.toml",
        "--import",
        "my method.py",
    ]


def test_images_from_python_are_passed_again(tmp_path: Path) -> None:
    command = command_again(make_experiment(), tmp_path, "cpu")
    assert command.text == 'fedssl.run("experiment.toml", dataset=images)'


def test_a_run_of_flower_is_run_by_flower(tmp_path: Path) -> None:
    folder = fake_run(tmp_path / "run")
    (folder / "flower.json").write_text("{}")
    assert command_again(load("demo"), folder, "cpu").text == "flwr run ."
