"""Features of a folder: in memory, as numpy arrays and as CSV."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from error_messages import raises

from fedssl.core.errors import ConfigError, DataError
from fedssl.downstream import image_folder
from fedssl.downstream.backbone import load_backbone
from fedssl.downstream.embed import embed, read_embeddings, write_embeddings

COLOURS = {"a/red.png": (255, 0, 0), "b/deep/green.png": (0, 255, 0), "white.png": (255,) * 3}
FEATURES = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 1.0]]


@pytest.fixture
def folder(put_colour, tmp_path: Path) -> Path:
    """Three images, one file that cannot be read, and one that plainly is no image."""
    for name, colour in COLOURS.items():
        put_colour(f"photos/{name}", colour)
    (tmp_path / "photos/b/bad.png").write_bytes(b"nothing")
    (tmp_path / "photos/notes.txt").touch()
    return tmp_path / "photos"


@pytest.mark.parametrize("at_once", [1, 2, 256])
def test_features_are_in_the_order_of_names(write_backbone, folder, monkeypatch, at_once) -> None:
    """In batches of any size; unreadable files are left out, counted and named."""
    monkeypatch.setattr(image_folder, "BATCH_FILES", at_once)
    messages: list[str] = []
    done = embed(load_backbone(write_backbone()), folder, notify=messages.append)
    assert done.names == list(COLOURS)
    assert done.features.tolist() == FEATURES
    assert done.skipped == ("not an image by its name: notes.txt", "not an image: b/bad.png")
    assert messages[-2:] == [
        "skipped 1 file that is not an image (notes.txt)",
        "left out 1 file:\n  not an image: b/bad.png",
    ]


@pytest.mark.parametrize("at_once", [1, 256])
def test_a_file_of_arrays_holds_the_same(write_backbone, folder, monkeypatch, at_once) -> None:
    monkeypatch.setattr(image_folder, "BATCH_FILES", at_once)
    backbone = load_backbone(write_backbone())
    path = folder.parent / "features.npz"
    written = write_embeddings(backbone, folder, path, notify=lambda line: None)
    assert written.images == 3
    with np.load(path, allow_pickle=False) as arrays:
        assert arrays["features"].dtype == np.float32
        assert arrays["features"].tolist() == FEATURES
        assert arrays["names"].tolist() == list(COLOURS)
    read = read_embeddings(path)
    assert (read.names, read.fingerprint) == (list(COLOURS), backbone.fingerprint())
    assert torch.equal(read.features, torch.tensor(FEATURES))


def test_a_table_has_a_header_and_a_line_for_each_file(write_backbone, folder) -> None:
    path = folder.parent / "features.csv"
    write_embeddings(load_backbone(write_backbone()), folder, path, notify=lambda line: None)
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["file", "f0", "f1", "f2"],
        ["a/red.png", "1", "0", "0"],
        ["b/deep/green.png", "0", "1", "0"],
        ["white.png", "1", "1", "1"],
    ]


def test_nothing_is_written_without_an_image(write_backbone, tmp_path: Path) -> None:
    backbone = load_backbone(write_backbone())
    (tmp_path / "empty").mkdir()
    for _ in range(2):
        with raises(DataError):
            write_embeddings(backbone, tmp_path / "empty", tmp_path / "out.npz")
        (tmp_path / "empty/bad.png").write_bytes(b"nothing")
    with raises(DataError):
        embed(backbone, tmp_path / "missing")
    assert not (tmp_path / "out.npz").exists()


def test_files_that_hold_no_features(write_backbone, folder, tmp_path: Path) -> None:
    with raises(ConfigError):
        write_embeddings(load_backbone(write_backbone()), folder, tmp_path / "features.txt")
    (tmp_path / "other.npz").write_bytes(b"nothing")
    np.savez(tmp_path / "pickled.npz", names=np.array([{}], dtype=object))
    for name in ("other.npz", "pickled.npz", "missing.npz"):
        with pytest.raises(ConfigError):
            read_embeddings(tmp_path / name)
