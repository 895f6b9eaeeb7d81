"""Contact sheets: images of clients and their views."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from factories import random_pixels
from PIL import Image
from torch import Tensor

from fedssl.plots.contact_sheet import FRAME, STEP, STRIP_GAP, TILE, Strip, draw_sheet
from fedssl.views import Augment, ViewGroup

UNCHANGED = Augment(crop=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.0, jitter_p=0.0, gray=0.0)


def _sheet(path: Path, images: Tensor, *strips: Strip) -> Tensor:
    names = [f"client {number}" for number in range(len(images))]
    draw_sheet(images, names, strips, title=["title", "settings"], seed=0, path=path)
    with Image.open(path) as sheet:
        return torch.from_numpy(np.array(sheet))


def _enlarged(image: Tensor) -> Tensor:
    """Return the tile (TILE, TILE, 3) of an image (C, H, W) whose side divides TILE."""
    factor = TILE // image.shape[1]
    rgb = image[:3] if len(image) > 1 else image.expand(3, -1, -1)
    return rgb.permute(1, 2, 0).repeat_interleave(factor, 0).repeat_interleave(factor, 1)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_images_are_followed_by_their_views(channels: int, tmp_path: Path) -> None:
    """Views without any random operation are the images themselves."""
    images = random_pixels(3, channels=channels, size=24)
    sheet = _sheet(tmp_path / "a.png", images, Strip("views", ViewGroup(2, 24, UNCHANGED), 2))
    left = sheet.shape[1] - STEP * 2 - STRIP_GAP - TILE
    for row, image in enumerate(images):
        bottom = sheet.shape[0] - STEP * (len(images) - row)
        tiles = sheet[bottom : bottom + TILE]
        for start in (left, left + TILE + STRIP_GAP, left + TILE + STRIP_GAP + STEP):
            assert torch.equal(tiles[:, start : start + TILE], _enlarged(image))


def test_a_white_tile_has_a_frame(tmp_path: Path) -> None:
    """Around the image and its view; the sheet is white, as borders of images can be."""
    white = torch.full((1, 3, 24, 24), 255, dtype=torch.uint8)
    sheet = _sheet(tmp_path / "a.png", white, Strip("views", ViewGroup(1, 24, UNCHANGED), 1))
    top = sheet.shape[0] - STEP
    middle = sheet[top + TILE // 2, -2 * STEP - STRIP_GAP :, 0]
    edges = (middle == FRAME[0]).nonzero().flatten().diff().tolist()
    assert edges == [TILE + 1, STRIP_GAP - 1, TILE + 1]


def test_strips_use_the_same_random_numbers(tmp_path: Path) -> None:
    images = random_pixels(2, size=24)
    strip = Strip("views", ViewGroup(1, 24, Augment()), 1)
    sheet = _sheet(tmp_path / "a.png", images, strip, strip)
    right = sheet.shape[1] - STEP
    other = right - STEP - STRIP_GAP + (STEP - TILE)
    rows = sheet[-STEP * 2 :]
    assert torch.equal(rows[:, right : right + TILE], rows[:, other : other + TILE])
    assert (rows[:, right : right + TILE] != 255).any()
