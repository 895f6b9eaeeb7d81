"""Paths of an experiment that processes with another current directory read."""

from __future__ import annotations

from pathlib import Path

import pytest
from factories import make_experiment

from fedssl.flower.absolute_paths import with_absolute_paths

FOLDER = {"data": {"name": "folder", "layout": "classes", "size": 8, "path": "photos"}}


def test_paths_in_the_current_directory_become_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("photos", "labelled"):
        Path(name).mkdir()
    experiment = make_experiment(FOLDER, data__test="labelled", probe__on="photos")
    values = with_absolute_paths(experiment, Path("data")).to_dict()
    assert values["data"]["path"] == str(tmp_path / "photos")
    assert values["data"]["test"] == str(tmp_path / "labelled")
    assert values["probe"]["on"] == str(tmp_path / "photos")


def test_a_table_of_probe_on_keeps_its_other_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    table = {"name": "folder", "layout": "classes", "path": "photos"}
    experiment = make_experiment({"probe": {"on": table}})
    values = with_absolute_paths(experiment, Path("data")).to_dict()
    assert values["probe"]["on"] == table | {"path": str(tmp_path / "photos")}


def test_names_and_paths_in_the_directory_of_data_sets_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("photos", "data/photos", "cifar10"):  # the second one is read
        Path(name).mkdir(parents=True)
    experiment = make_experiment(FOLDER, probe__on="cifar10")
    assert with_absolute_paths(experiment, Path("data")) == experiment
    missing = make_experiment(FOLDER, data__path="missing")
    assert with_absolute_paths(missing, Path("data")) == missing


def test_the_file_of_a_listed_partition_is_in_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    experiment = make_experiment(partition={"name": "listed", "path": "clients.json"})
    values = with_absolute_paths(experiment, Path("data")).to_dict()
    assert values["partition"]["path"] == str(tmp_path / "clients.json")
