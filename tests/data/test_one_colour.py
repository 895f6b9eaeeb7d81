"""The warning about images that have a single colour after decoding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from factories import random_pixels
from PIL import Image

from fedssl.data import Folder
from fedssl.data.image_pool import PixelRows
from fedssl.data.one_colour import one_colour_images, one_colour_warning


@pytest.mark.parametrize("size", [1, 3, 9, 32])
def test_one_pixel_makes_the_difference(size: int) -> None:
    """Image 0 is black, 1 red; each other one differs from black in one value."""
    values = 3 * size * size
    pool = torch.zeros(2 + values, 3, size, size, dtype=torch.uint8)
    pool[1, 0] = 255
    pool[2:].view(values, values)[range(values), range(values)] = 1
    expected = [0, 1] if size > 1 else list(range(5))
    assert one_colour_images(PixelRows(pool)).tolist() == expected


def test_positions_are_those_of_the_selected_rows() -> None:
    pool = random_pixels(3000, size=8)
    pool[[5, 1500, 2999]] = 7
    rows = torch.arange(2999, -1, -1)
    assert one_colour_images(PixelRows(pool, rows)).tolist() == [0, 1499, 2994]
    assert one_colour_images(PixelRows(pool, rows[1:1499])).tolist() == []


@pytest.mark.parametrize(
    ("single", "count", "warns"),
    [(2, 2, False), (3, 3, True), (3, 300, True), (3, 301, False), (9, 1000, False)],
)
def test_one_percent_and_at_least_three(
    single: int, count: int, warns: bool, tmp_path: Path
) -> None:
    pool = random_pixels(count, size=4)
    pool[:single] = 0
    names = [f"{number}.png" for number in range(count)]
    warning = one_colour_warning(tmp_path, names, PixelRows(pool), "black")
    assert (warning is not None) == warns
    if warning is not None:
        assert warning.startswith(f"{single} of {count} images have a single colour")


def _draw(folder: Path, mode: str, grey: int) -> None:
    """Write four images of a grey diagonal on transparent pixels, opaque in modes without alpha."""
    image = Image.new("LA", (8, 8), (grey, 0))
    for place in range(8):
        image.putpixel((place, place), (grey, 255))
    for number in range(4):
        image.convert(mode).save(folder / f"{number}.png")


@pytest.mark.parametrize(
    ("background", "grey", "advice"), [("black", 0, "white"), ("white", 255, "black")]
)
def test_drawings_in_the_colour_of_the_background(
    background: str, grey: int, advice: str, tmp_path: Path
) -> None:
    """With the background that the warning names, the drawings are visible."""
    _draw(tmp_path, "RGBA", grey)
    folder = Folder(path=".", size=8, layout="flat", background=background, cache="off")
    lines: list[str] = []
    folder.load(tmp_path, lines.append)
    assert lines[-1] == (
        f"4 of 4 images have a single colour after decoding (transparent pixels become "
        f'{background}): see `fedssl views`, and set data.background = "{advice}"'
    )
    lines.clear()
    folder.model_copy(update={"background": advice}).load(tmp_path, lines.append)
    assert not any("single colour" in line for line in lines)


def test_the_background_is_not_blamed_for_opaque_images(tmp_path: Path) -> None:
    _draw(tmp_path, "L", 9)
    lines: list[str] = []
    Folder(path=".", size=8, layout="flat", cache="off").load(tmp_path, lines.append)
    assert lines[-1] == (
        "4 of 4 images have a single colour after decoding: look at them, and remove those that "
        "show nothing"
    )
