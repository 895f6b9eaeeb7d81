"""A sweep that could not be measured is refused before anything is trained."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from error_messages import raises

import fedssl
from fedssl.core.errors import ConfigError
from fedssl.paper_tables.plan import Measure, Training
from fedssl.paper_tables.reproduce import TableError

MINE = """
rounds = 1
clients = 2
data = {name = "npz", path = "labelled.npz"}
method = {name = "simclr", backbone = "cnn"}
"""


class Untrained:
    """A pool that records its trainings and does not run them."""

    todo: dict[Training, list[Measure]]

    def __init__(self, todo: dict[Training, list[Measure]], *more: Any) -> None:
        Untrained.todo = todo


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An experiment with images with labels, with labelled test images only, or without labels."""
    module = import_module(
        "fedssl.paper_tables.reproduce"
    )  # fedssl.reproduce itself is the function
    monkeypatch.setattr(module, "Pool", Untrained)
    monkeypatch.setattr(module, "_run_pool", lambda *args: None)
    images = np.zeros((12, 8, 8, 3), np.uint8)
    labels = np.arange(12) % 3
    np.savez(
        tmp_path / "labelled.npz", x_train=images, y_train=labels, x_test=images, y_test=labels
    )
    np.savez(tmp_path / "tests.npz", x_train=images, x_test=images, y_test=labels)
    np.savez(tmp_path / "none.npz", x_train=images)
    (tmp_path / "mine.toml").write_text(MINE)
    Untrained.todo = {}
    return str(tmp_path / "mine.toml")


def test_without_labels_nothing_is_trained(mine: str, tmp_path: Path) -> None:
    with raises(ConfigError):
        fedssl.sweep(
            mine,
            ["data.path=none.npz", "train.lr=0.1,0.2"],
            dir=tmp_path / "out",
            data_dir=tmp_path,
        )
    assert Untrained.todo == {}


def test_measurable_cells_are_trained(mine: str, tmp_path: Path) -> None:
    """If only test images have labels, the classes of clients are unknown."""
    with pytest.raises(TableError) as raised:  # nothing is trained here
        fedssl.sweep(
            mine,
            ["data.path=labelled.npz,tests.npz,none.npz"],
            1,
            ["linear", "per-client"],
            tmp_path / "out",
            data_dir=tmp_path,
        )
    outcome = raised.value.outcome
    requested = {
        (training.experiment.to_dict()["data"]["path"], measure.probe)
        for training, measures in Untrained.todo.items()
        for measure in measures
    }
    assert requested == {
        ("labelled.npz", "linear"),
        ("labelled.npz", "per-client"),
        ("tests.npz", "linear"),
    }
    states = {(result.cell.row, result.cell.probe): result.state for result in outcome.results}
    assert states["data.path=none.npz", "linear"] == "failed"
    assert states["data.path=tests.npz", "per-client"] == "failed"
    assert states["data.path=tests.npz", "linear"] == "missing"


def test_earlier_measurements_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If a sweep is run again, unmeasurable cells are an error only if there are no others."""
    module = import_module("fedssl.paper_tables.reproduce")
    done, never = (
        SimpleNamespace(training=f"{i}", measure=SimpleNamespace(file="linear")) for i in range(2)
    )
    monkeypatch.setattr(
        module, "unmeasurable", lambda *args: {(never.training, "linear"): "there are no labels"}
    )
    outcome = SimpleNamespace(
        requested_seeds=[done, never], workspace=SimpleNamespace(data_dir=tmp_path), problems={}
    )
    todo = {never.training: [never.measure]}
    assert module._drop_unmeasurable(outcome, todo) == {}
    assert outcome.problems == {("1", "linear"): "there are no labels"}
    outcome.requested_seeds = [never]
    with raises(ConfigError):
        module._drop_unmeasurable(outcome, todo)


def test_missing_images_are_reported_by_their_training(mine: str, tmp_path: Path) -> None:
    with pytest.raises(TableError):  # nothing is trained here
        fedssl.sweep(mine, ["data.path=nosuch.npz"], 1, dir=tmp_path / "out", data_dir=tmp_path)
    assert len(Untrained.todo) == 1


def test_images_are_not_read_again_for_a_paper(
    mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module("fedssl.paper_tables.preflight")
    monkeypatch.setattr(module, "read_data", lambda *args: pytest.fail("images were read"))
    with pytest.raises(TableError):
        fedssl.reproduce("fedema-3", "mini", 1, ["FedU, CIFAR-10, IID"], tmp_path / "out", "cpu")
    assert len(Untrained.todo) == 1
