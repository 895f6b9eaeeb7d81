"""`fedssl new` writes an experiment for a folder, and overwrites nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for client in ("north", "south"):
        for number in range(3):
            path = tmp_path / "photos" / client / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((32, 32, 3), number, np.uint8)).save(path)
    return tmp_path / "photos"


def test_the_written_experiment_is_valid(photos: Path, cli: Any) -> None:
    code, out, _ = cli("new", "photos")
    assert code == 0
    assert "6 images" in out
    assert "2 clients: north (3), south (3)" in out
    code, out, _ = cli("partition", "photos.toml")
    assert code == 0


def test_an_existing_file_is_kept(photos: Path, cli: Any) -> None:
    Path("mine.toml").write_text("mine")
    code, _, err = cli("new", "photos", "-o", "mine.toml")
    assert code == 2
    assert "mine.toml exists: choose another file with -o, or overwrite it with --force" in err
    assert Path("mine.toml").read_text() == "mine"
    assert cli("new", "photos", "-o", "mine.toml", "--force")[0] == 0


def test_an_unknown_preset_is_reported(photos: Path, cli: Any) -> None:
    code, _, err = cli("new", "photos", "--views", "xrays")
    assert code == 2
    assert 'unknown view preset "xrays", did you mean "xray"?' in err
