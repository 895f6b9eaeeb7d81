"""The layout of a folder is detected from the names of its files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from error_messages import raises
from PIL import Image

from fedssl.core.errors import DataError
from fedssl.data.inspect_folder import FolderSummary, detect_layout, inspect_folder


def _write(path: Path, side: int = 8, mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((side, side), np.uint8)).convert(mode).save(path)


def _inspect(folder: Path) -> FolderSummary:
    return inspect_folder(folder, lambda line: None)


@pytest.mark.parametrize(
    ("names", "test_classes", "layout"),
    [
        (["a.png", "b.png"], [], "flat"),
        (["north/a.png", "south/b.png"], [], "clients"),
        (["cat/a.png", "dog/b.png"], ["cat", "dog", "horse"], "classes"),
        (["north/a.png", "south/b.png"], ["cat", "dog"], "clients"),
        (["north/cat/a.png", "south/cat/b.png"], [], "clients-classes"),
        # Dates differ between clients, so they are no classes.
        (["north/2020/a.png", "south/2021/b.png"], [], "clients"),
        (["north/a.png", "stray.png"], [], "clients"),
    ],
)
def test_layouts(names: list[str], test_classes: list[str], layout: str) -> None:
    assert detect_layout(names, test_classes)[0] == layout


def test_a_folder_of_clients(tmp_path: Path) -> None:
    for name in ("north/a.png", "north/b.png", "south/c.png"):
        _write(tmp_path / name, side=40)
    summary = _inspect(tmp_path)
    assert summary.layout == "clients"
    assert summary.groups == {"north": 2, "south": 1}
    assert (summary.images, summary.side, summary.grey) == (3, 40, False)


def test_train_and_test_folders(tmp_path: Path) -> None:
    _write(tmp_path / "train/north/a.png", mode="L")
    _write(tmp_path / "test/cat/b.png", mode="L")
    summary = _inspect(tmp_path)
    assert (summary.train, summary.test) == (tmp_path / "train", tmp_path / "test")
    assert summary.classes == ["cat"]
    assert summary.grey


def test_classes_in_clients(tmp_path: Path) -> None:
    for name in ("north/cat/a.png", "north/dog/b.png", "south/cat/c.png", "south/dog/d.png"):
        _write(tmp_path / name)
    summary = _inspect(tmp_path)
    assert summary.layout == "clients-classes"
    assert summary.classes == ["cat", "dog"]
    assert summary.groups == {"north": 2, "south": 2}


def test_the_layout_may_be_given(tmp_path: Path) -> None:
    _write(tmp_path / "cat/a.png")
    assert inspect_folder(tmp_path, lambda line: None, "classes").layout == "classes"


def test_a_folder_without_images(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no image")
    with raises(DataError):
        _inspect(tmp_path)
    with raises(DataError):
        _inspect(tmp_path / "missing")
