"""The picture of a query and its neighbours."""

from __future__ import annotations

import torch
from PIL import Image, ImageFont

from fedssl.plots.neighbour_sheet import Captioned, draw_neighbours, shortened_name


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
