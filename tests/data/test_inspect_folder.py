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


def _inspect(folder: Path, layout: str | None = None) -> FolderSummary:
    return inspect_folder(folder, lambda line: None, layout)


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
        (["a.png", "b.png", "c.png", "other/d.png"], [], "flat"),
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
    for name in ("a", "b"):
        _write(tmp_path / f"train/north/{name}.png", mode="L")
    _write(tmp_path / "test/cat/b.png", mode="L")
    summary = _inspect(tmp_path)
    assert summary.test == tmp_path / "test"
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
    for name in ("cat/a.png", "dog/b.png"):
        _write(tmp_path / name)
    assert inspect_folder(tmp_path, lambda line: None, "classes").layout == "classes"


def test_a_layout_that_does_not_fit(tmp_path: Path) -> None:
    _write(tmp_path / "cat/a.png")
    with raises(DataError):
        inspect_folder(tmp_path, lambda line: None, "clients-classes")


def test_other_folders_next_to_train(tmp_path: Path) -> None:
    for name in ("train/a.png", "train/b.png", "valid/c.png"):
        _write(tmp_path / name)
    with raises(DataError):
        _inspect(tmp_path)
    assert inspect_folder(tmp_path, lambda line: None, "clients").groups == {"train": 2, "valid": 1}


def test_test_images_without_classes(tmp_path: Path) -> None:
    _write(tmp_path / "train/north/a.png")
    _write(tmp_path / "test/b.png")
    with raises(DataError):
        _inspect(tmp_path)


def test_files_that_are_no_images(tmp_path: Path) -> None:
    """One of three files in north is damaged, and none in south; one file is outside of both."""
    for name in ("north/a.png", "north/b.png", "south/c.png"):
        _write(tmp_path / name)
    for name in ("north/damaged.png", "damaged.png", "north/notes.txt", "readme.txt"):
        (tmp_path / name).write_text("no image")
    summary = _inspect(tmp_path)
    assert (summary.images, summary.outside) == (4, 1)
    assert (summary.sampled, summary.unreadable, summary.bad_share) == (4, 1, 1 / 3)


def test_too_few_images(tmp_path: Path) -> None:
    for name in ("north/a.png", "south/b.png"):
        _write(tmp_path / name)
    with raises(DataError):
        _inspect(tmp_path)


@pytest.mark.parametrize(("name", "layout"), [("a.png", "flat"), ("cat/a.png", "classes")])
def test_one_image(name: str, layout: str, tmp_path: Path) -> None:
    """In these layouts, folders are not clients."""
    _write(tmp_path / name)
    with raises(DataError):
        _inspect(tmp_path, layout)


def test_a_folder_without_images(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no image")
    with raises(DataError):
        _inspect(tmp_path)
    (tmp_path / "notes.txt").rename(tmp_path / "broken.png")
    with raises(DataError):
        _inspect(tmp_path)
    with raises(DataError):
        _inspect(tmp_path / "missing")
