"""The warning about images that are far smaller than the size they are scaled to."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from fedssl.data import Folder
from fedssl.data.small_images import small_images_warning


def save(folder: Path, *sizes: tuple[int, int]) -> list[str]:
    """Write images of these sizes; return their names."""
    names = []
    for number, size in enumerate(sizes):
        names.append(f"{number}.png")
        Image.new("L", size).save(folder / names[-1])
    return names


@pytest.mark.parametrize(
    ("size", "warns"), [(64, False), (65, True)], ids=["half the size", "less than half"]
)
def test_the_median_of_the_shorter_sides_counts(tmp_path: Path, size: int, warns: bool) -> None:
    """The shorter sides are 8, 32 and 100; their median is half of 64."""
    names = save(tmp_path, (8, 90), (40, 32), (100, 100))
    warning = small_images_warning(tmp_path, names, size)
    assert (warning is not None) == warns
    if warning is not None:
        assert warning.startswith("half of the images have at most 32 pixels a side, but")
        assert warning.endswith("set data.size = 32")


def test_files_that_cannot_be_read_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "bad.png").touch()
    assert small_images_warning(tmp_path, ["bad.png", "missing.png"], 64) is None
    names = save(tmp_path, (8, 8))
    assert small_images_warning(tmp_path, ["bad.png", *names], 64) is not None


def test_a_sample_of_many_files_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1,000 names, every fifth is read: 200."""
    read = []

    def read_header(path: Path) -> tuple[int, int, str]:
        read.append(int(path.name))
        return 64, 64, "L"

    monkeypatch.setattr("fedssl.data.small_images.read_header", read_header)
    small_images_warning(tmp_path, [str(number) for number in range(1000)], 64)
    assert read == list(range(0, 1000, 5))


def test_a_folder_of_small_images_warns_when_it_is_read(tmp_path: Path) -> None:
    save(tmp_path, (8, 8), (8, 8))
    messages: list[str] = []
    Folder(path=".", size=17, layout="flat").load(tmp_path, messages.append)
    assert any("set data.size = 8" in message for message in messages)
    messages.clear()
    Folder(path=".", size=16, layout="flat").load(tmp_path, messages.append)
    assert not any("data.size" in message for message in messages)
