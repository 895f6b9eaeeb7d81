"""Folders with images and an experiment, to run commands in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

MINE = """
rounds = 2
clients = 3
[data]
name = "npz"
path = "mine.npz"
[method]
name = "simclr"
backbone = "cnn"
hidden = 32
dim = 16
[train]
batch = 4
[probe]
every = 1
epochs = 5
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder that has mine.toml and its images only."""
    monkeypatch.chdir(tmp_path)
    labels = np.arange(36) % 3
    noise = np.random.default_rng(0).integers(0, 80, (36, 10, 10, 3))
    images = (noise + 80 * labels[:, None, None, None]).astype(np.uint8)
    Path("data").mkdir()
    np.savez(
        "data/mine.npz", x_train=images, y_train=labels, x_test=images[:12], y_test=labels[:12]
    )
    Path("mine.toml").write_text(MINE)
    return tmp_path


@pytest.fixture
def ward(here: Path) -> list[str]:
    """Write a folder of two clients without classes; return the settings that read it."""
    for client in ("north [a]", "[red] south"):
        folder = here / "data/ward" / client
        folder.mkdir(parents=True)
        for n in range(6):
            Image.effect_noise((12, 12), 40 + n).save(folder / f"{n}.png")
    sets = [
        "data.name=folder",
        "data.path=ward",
        "data.layout=clients",
        "data.size=10",
        "partition.name=natural",
    ]
    return [word for text in [*sets, "clients=2"] for word in ("--set", text)]
