"""Labelled test images can be added to a run that is already trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from factories import bright_pixels
from PIL import Image

import fedssl
from fedssl.data.folder import Folder

EXPERIMENT = """
rounds = 2
[data]
name = "folder"
path = "photos"
layout = "clients"
size = 10
[partition]
name = "natural"
[method]
name = "simclr"
backbone = "cnn"
hidden = 8
dim = 4
[train]
batch = 8
[probe]
every = 0
epochs = 20
baselines = []
"""


def write(folder: Path, groups: tuple[str, ...], images: int, seed: int) -> None:
    """Write bright images into one folder per group; the brightness is that of the group."""
    pixels, labels = bright_pixels(images * len(groups), seed, classes=len(groups))
    for number, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        path = folder / groups[int(label)] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> fedssl.Run:
    """Return a run that was trained without labels, in runs/mine."""
    monkeypatch.chdir(tmp_path)
    write(Path("photos"), ("north", "south"), 12, seed=0)
    write(Path("labelled"), ("cat", "dog", "fox"), 12, seed=1)
    Path("mine.toml").write_text(EXPERIMENT)
    return fedssl.run("mine.toml", device="cpu", quiet=True)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files that training writes."""
    files = [folder / "rounds.jsonl", *sorted((folder / "checkpoints").iterdir())]
    return {path.name: path.read_bytes() for path in files if path.is_file()}


def test_a_trained_run_is_measured_and_not_trained(trained: fedssl.Run) -> None:
    assert trained.results["table"] == {}
    before = contents(trained.dir)
    measured = fedssl.run(
        "mine.toml", device="cpu", quiet=True, set={"data.test": "labelled", "probe.linear": True}
    )
    assert measured.dir == trained.dir == Path("runs/mine")
    assert contents(measured.dir) == before
    accuracies = measured.results["table"]["this run"]
    assert accuracies["knn"]["mean"] > 80  # the classes differ in brightness
    assert accuracies["linear"]["mean"] > 50


def test_measuring_another_way_does_not_train(
    trained: fedssl.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(trained.dir)
    Path("mine.toml").write_text(
        EXPERIMENT.replace('layout = "clients"', 'layout = "clients"\ntest = "labelled"').replace(
            "epochs = 20", "epochs = 3\nk = 3"
        )
    )
    measured = fedssl.run("mine.toml", device="cpu", quiet=True)
    assert contents(measured.dir) == before
    assert measured.results["knn_settings"]["k"] == 3
    recorded = json.loads((measured.dir / "results.json").read_text())

    def read(*args: Any) -> None:
        raise AssertionError("images were read twice")

    monkeypatch.setattr(Folder, "load", read)
    assert fedssl.Run(measured.dir).results == recorded


def test_another_size_of_test_images_is_another_training(trained: fedssl.Run) -> None:
    """data.size changes what clients train on, so the run gets another directory."""
    smaller = fedssl.run("mine.toml", device="cpu", quiet=True, set={"data.size": 9})
    assert smaller.dir == Path("runs/mine-size9")
