"""A message states whether there is nothing at a path, or something of the wrong kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedssl.core.missing_paths import no_file, no_folder


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to a folder with a folder and a file."""
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    Path("photo.png").touch()


def test_folders() -> None:
    assert no_folder("photo.png") == "photo.png is a file, not a folder"
    assert no_folder("fotos") == 'there is no folder fotos, did you mean "photos"?'
    assert no_folder("other", ": make it") == "there is no folder other: make it"


def test_files() -> None:
    assert no_file("photos") == "photos is a folder, not a file"
    assert no_file("photo1.png") == 'there is no file photo1.png, did you mean "photo.png"?'
    assert no_file("zoo.png", Path.is_dir) == "there is no file zoo.png"
