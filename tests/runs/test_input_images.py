"""Image files as the input of a backbone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from error_messages import raises
from factories import make_experiment, random_pixels
from PIL import Image

import fedssl
from fedssl.core.errors import ConfigError, DataError

MEAN = [0.4, 0.5, 0.6]
STD = [0.2, 0.25, 0.5]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of eight photos of several shapes and modes, one of them turned by EXIF."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, mode in enumerate(["RGB", "L", "RGBA", "P", "RGB", "L", "RGB", "RGB"]):
        exif = Image.Exif()
        exif[0x0112] = 6 if number == 7 else 1  # the orientation
        pixels = random_pixels(1, seed=number, channels=1, size=30)[0, 0, :, : 20 + number]
        image = Image.fromarray(pixels.contiguous().numpy()).convert(mode)
        image.save(folder / f"{number}.png", exif=exif)
    return folder


def _run(folder: Path, **changes: Any) -> fedssl.Run:
    data = {"name": "folder", "path": str(folder), "layout": "flat", "size": 10, "cache": "off"}
    experiment = make_experiment(
        rounds=1, clients=2, data={**data, "mean": MEAN, "std": STD}, train__batch=2, **changes
    )
    return fedssl.run(experiment, folder.parent / "run", "cpu", quiet=True)


def test_files_become_the_pixels_of_training(photos: Path) -> None:
    """(x / 255 - mean) / std of the pixels that clients trained on, in the order of the paths."""
    run = _run(photos)
    files = sorted(photos.iterdir(), reverse=True)
    loaded = run.load_images(files)
    pixels = run.data(lambda line: None).train.pixels.flip(0)
    mean = torch.tensor(MEAN).view(3, 1, 1)
    std = torch.tensor(STD).view(3, 1, 1)
    assert loaded.shape == (8, 3, 10, 10)
    torch.testing.assert_close(loaded, (pixels / 255 - mean) / std)
    assert run.backbone()(loaded).shape == (8, 512)


def test_a_file_that_cannot_be_read_is_an_error(photos: Path) -> None:
    run = _run(photos)
    bad = photos / "bad.png"
    bad.touch()
    with raises(DataError) as raised:
        run.load_images([str(photos / "0.png"), bad])
    assert raised.value.detail == f"empty file: {bad}"
    with raises(ConfigError):
        run.load_images([])


def test_images_that_are_no_squares_cannot_be_made_from_files(tmp_path: Path) -> None:
    wide = random_pixels(12, size=10)[:, :, :8]
    run = fedssl.run(make_experiment(rounds=1), tmp_path / "run", "cpu", dataset=wide, quiet=True)
    with raises(ConfigError):
        run.load_images([tmp_path / "any.png"])
