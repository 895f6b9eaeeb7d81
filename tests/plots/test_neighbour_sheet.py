"""The picture of a query and its neighbours."""

from __future__ import annotations

import torch
from PIL import Image, ImageFont

from fedssl.plots.neighbour_sheet import (
    Captioned,
    draw_neighbours,
    shortened_folder,
    shortened_name,
)


def test_a_long_name_keeps_its_end() -> None:
    font = ImageFont.load_default(14)
    assert shortened_name("a.png", 128, font) == "a.png"
    name = shortened_name("folder/" * 20 + "photo.png", 128, font)
    assert name.startswith("…")
    assert name.endswith("photo.png")
    assert font.getlength(name) <= 128


def test_rows_of_six_fit_next_to_the_query(tmp_path) -> None:
    """Seven neighbours need two rows of 128 + 2·19 + 12 pixels below 43; twelve columns do not
    fit: 6 · (128 + 12) pixels after 12 + 256 + 24.
    """
    tile = Captioned(torch.full((1, 10, 20), 100, dtype=torch.uint8), "1", "grey.png")
    draw_neighbours(tile, [tile] * 7, "title", tmp_path / "out.png")
    with Image.open(tmp_path / "out.png") as picture:
        assert picture.size == (12 + 256 + 24 + 6 * 140, 43 + 2 * (128 + 38 + 12))


def test_a_long_folder_keeps_its_start_and_its_end() -> None:
    font = ImageFont.load_default(14)
    assert shortened_folder("north/cat/", 128, font) == "north/cat/"
    folder = shortened_folder("north/" + "inner/" * 20 + "cat/", 128, font)
    assert folder.startswith("north/")
    assert folder.endswith("/cat/")
    assert font.getlength(folder) <= 128


def test_a_folder_is_a_line_between_caption_and_name(tmp_path) -> None:
    """Each row is one line of 19 pixels higher than without folders."""
    pixels = torch.full((1, 10, 20), 100, dtype=torch.uint8)
    query = Captioned(pixels, "query", "grey.png")
    tile = Captioned(pixels, "1", "north/grey.png")
    draw_neighbours(query, [tile] * 7, "title", tmp_path / "out.png")
    with Image.open(tmp_path / "out.png") as picture:
        assert picture.height == 43 + 2 * (128 + 3 * 19 + 12)
        second_line = picture.crop((292, 43 + 128 + 4 + 19, 292 + 128, 43 + 128 + 4 + 38))
        assert second_line.convert("L").getextrema()[0] < 200
