"""A sweep that could not be measured is refused before anything is trained."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fedssl
from fedssl.errors import ConfigError
from fedssl.reproduce import TableError
from fedssl.reproduce.plan import Measure, Training

MINE = """
rounds = 1
clients = 2
data = {name = "npz", path = "labelled.npz"}
method = {name = "simclr", backbone = "cnn"}
"""


class Untrained:
    """A pool that notes what it was to train, and does not."""

    asked: dict[Training, list[Measure]]

    def __init__(self, todo: dict[Training, list[Measure]], *more: Any) -> None:
        Untrained.asked = todo


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An experiment with images of three kinds: with labels, with labelled test images only, without labels."""
    module = import_module("fedssl.reproduce")  # fedssl.reproduce itself is the function
    monkeypatch.setattr(module, "Pool", Untrained)
    monkeypatch.setattr(module, "_serve", lambda *args: None)
    images, labels = np.zeros((12, 8, 8, 3), np.uint8), np.arange(12) % 3
    np.savez(tmp_path / "labelled.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    np.savez(tmp_path / "tests.npz", x_train=images, x_test=images, y_test=labels)
    np.savez(tmp_path / "none.npz", x_train=images)
    (tmp_path / "mine.toml").write_text(MINE)
    Untrained.asked = {}
    return str(tmp_path / "mine.toml")


def test_without_labels_nothing_is_trained(mine: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"neither test images nor labels here: .*; without labels, fedssl run"):
        fedssl.sweep(mine, ["data.path=none.npz", "train.lr=0.1,0.2"], dir=tmp_path / "out", data_dir=tmp_path)
    assert Untrained.asked == {}


def test_what_can_be_measured_is_trained(mine: str, tmp_path: Path) -> None:
    """Three kinds of images, two probes: with labelled test images only, nobody knows the clients' classes."""
    with pytest.raises(TableError) as raised:  # nothing is trained here
        fedssl.sweep(
            mine,
            ["data.path=labelled.npz,tests.npz,none.npz"],
            1,
            ["linear", "per-client"],
            tmp_path / "out",
            data_dir=tmp_path,
        )
    made = raised.value.outcome
    asked = {
        (training.experiment.to_dict()["data"]["path"], measure.probe)
        for training, measures in Untrained.asked.items()
        for measure in measures
    }
    assert asked == {("labelled.npz", "linear"), ("labelled.npz", "per-client"), ("tests.npz", "linear")}
    states = {(each.cell.row, each.cell.probe): each.state for each in made.results}
    assert states["data.path=none.npz", "linear"] == states["data.path=tests.npz", "per-client"] == "failed"
    assert states["data.path=tests.npz", "linear"] == "missing"


def test_what_was_measured_before_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A sweep that is run again has only what cannot be measured to do; that is no error, unless it is all there is."""
    module = import_module("fedssl.reproduce")
    done, never = (SimpleNamespace(training=f"{i}", measure=SimpleNamespace(file="linear")) for i in range(2))
    monkeypatch.setattr(module, "unmeasurable", lambda *args: {(never.training, "linear"): "there are no labels"})
    outcome = SimpleNamespace(wanted=[done, never], where=SimpleNamespace(data_dir=tmp_path), problems={})
    todo = {never.training: [never.measure]}
    assert module._measurable(outcome, todo) == {}
    assert outcome.problems == {("1", "linear"): "there are no labels"}
    outcome.wanted = [never]
    with pytest.raises(ConfigError, match="no labels"):
        module._measurable(outcome, todo)


def test_images_that_are_not_there_are_left_to_be_said_by_their_training(mine: str, tmp_path: Path) -> None:
    with pytest.raises(TableError):  # nothing is trained here
        fedssl.sweep(mine, ["data.path=nosuch.npz"], 1, dir=tmp_path / "out", data_dir=tmp_path)
    assert len(Untrained.asked) == 1


def test_images_are_not_read_again_for_a_paper(mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("fedssl.reproduce.measurable")
    monkeypatch.setattr(module, "read_data", lambda *args: pytest.fail("images were read"))
    with pytest.raises(TableError):
        fedssl.reproduce("fedema-3", "mini", 1, ["FedU, CIFAR-10, IID"], tmp_path / "out", "cpu")
    assert len(Untrained.asked) == 1
