"""A picture of a query image and its nearest neighbours."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw
from torch import Tensor

from fedssl.plots.contact_sheet import FRAME, draw_tile
from fedssl.plots.font import Font, text_font

# In pixels:
SIDE = 128  # of a neighbour's tile
QUERY_SIDE = 2 * SIDE
GAP = 12
LINE = 19
TEXT = 14  # size of the font
COLUMNS = 6
QUERY_COLOUR = (0, 114, 178)  # the first colour of the palette of figures
GREY = (110, 110, 110)


class Captioned(NamedTuple):
    """An image with a caption, and its name, whose folder is on a separate line."""

    pixels: Tensor  # uint8 (C, H, W)
    caption: str
    name: str


def draw_neighbours(
    query: Captioned, neighbours: Sequence[Captioned], title: str, path: Path
) -> None:
    """Write a PNG with the query on the left and its neighbours in rows, the nearest first."""
    font = text_font(TEXT)
    columns = min(COLUMNS, len(neighbours))
    rows = -(-len(neighbours) // columns)
    top = GAP + LINE + GAP
    step_x = SIDE + GAP
    lines = _text_lines([query, *neighbours])
    step_y = SIDE + lines * LINE + GAP
    left = GAP + QUERY_SIDE + 2 * GAP
    width = max(left + columns * step_x, 2 * GAP + int(font.getlength(title)))
    height = top + max(rows * step_y, QUERY_SIDE + lines * LINE + GAP)
    sheet = Image.new("RGB", (width, height), "white")
    pen = ImageDraw.Draw(sheet)
    pen.text((GAP, GAP), title, "black", font)
    _paste(sheet, query, (GAP, top), QUERY_SIDE, font, QUERY_COLOUR)
    for number, neighbour in enumerate(neighbours):
        corner = (left + number % columns * step_x, top + number // columns * step_y)
        _paste(sheet, neighbour, corner, SIDE, font, FRAME)
    sheet.save(path)


def _text_lines(tiles: Sequence[Captioned]) -> int:
    """Return the number of lines of text below a tile: one more if any name has a folder."""
    if any(os.path.dirname(tile.name) for tile in tiles):
        return 3
    return 2


def _paste(
    sheet: Image.Image,
    tile: Captioned,
    corner: tuple[int, int],
    side: int,
    font: Font,
    frame: tuple[int, int, int],
) -> None:
    """Draw a tile and below it its caption, its folder if it has one, and its file name."""
    left, top = corner
    pen = ImageDraw.Draw(sheet)
    border = 3 if frame == QUERY_COLOUR else 1
    box = (left - border, top - border, left + side + border - 1, top + side + border - 1)
    pen.rectangle(box, outline=frame, width=border)
    sheet.paste(draw_tile(tile.pixels, side), corner)
    line = top + side + 4
    pen.text((left, line), tile.caption, "black", font)
    folder, name = os.path.split(tile.name)
    if folder:
        line += LINE
        pen.text((left, line), shortened_folder(f"{folder}/", side, font), GREY, font)
    line += LINE
    pen.text((left, line), shortened_name(name, side, font), GREY, font)


def shortened_folder(folder: str, width: int, font: Font) -> str:
    """Return the start and the end of a folder that fit into a width in pixels, with "…" between.

    The start is the client in most layouts, the end the class.
    """
    if font.getlength(folder) <= width:
        return folder
    for kept in range(len(folder) - 1, 1, -1):
        end = kept // 2
        text = f"{folder[: kept - end]}…{folder[len(folder) - end :]}"
        if font.getlength(text) <= width:
            return text
    return "…"


def shortened_name(name: str, width: int, font: Font) -> str:
    """Return the end of a name that fits into a width in pixels, after "…" if it is cut."""
    if font.getlength(name) <= width:
        return name
    start = 1
    while start < len(name) and font.getlength(f"…{name[start:]}") > width:
        start += 1
    return f"…{name[start:]}"
