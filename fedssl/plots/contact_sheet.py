"""A contact sheet: a few images and their augmented views in one PNG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from fedssl.plots.font import Font, text_font
from fedssl.views import ViewGroup, draw, make_views

# In pixels:
TILE = 96
GAP = 4
STEP = TILE + GAP
STRIP_GAP = 16  # between strips, and after the clean images
LINE = 20  # height of a line of text
TEXT = 14  # size of the font; a sheet of about 1,000 pixels is shown at 70% on a page
MAX_NAME = 20  # characters of a row's name
FRAME = (200, 200, 200)  # around each tile: white borders of images would not be visible


class Strip(NamedTuple):
    """Neighbouring columns with views of one family, and a heading."""

    heading: str
    group: ViewGroup
    columns: int


def draw_sheet(
    images: Tensor,
    names: Sequence[str],
    strips: Sequence[Strip],
    *,
    title: Sequence[str],
    seed: int,
    path: Path | str,
) -> None:
    """Write a PNG with a row for each uint8 image (n, C, H, W): its name, itself and views of it.

    `title` has lines of text above the rows. All strips use the same random numbers. Images of one
    channel are grey; of images with more than three channels the first three are shown.
    """
    images = images.cpu()
    font = text_font(TEXT)
    short_names = list(map(_abbreviate, names))
    left = 3 * GAP + _longest(font, short_names)
    top = GAP + LINE * (len(title) + 1)
    size = (_sheet_width(left, strips, title, font), top + STEP * len(images))
    sheet = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(sheet)
    for number, line in enumerate(title):
        pen.text((GAP, GAP + LINE * number), line, "black", font)
    for row, name in enumerate(short_names):
        pen.text((GAP, top + STEP * row + TILE // 2), name, "black", font, anchor="lm")
    pen.text((left, top - LINE), "image", "black", font)
    _paste_column(sheet, images, left, top)
    left += TILE + STRIP_GAP
    for strip in strips:
        pen.text((left, top - LINE), strip.heading, "black", font)
        for views in _make_views(images, strip, seed):
            _paste_column(sheet, views, left, top)
            left += STEP
        left += STRIP_GAP - GAP
    sheet.save(path)


def _sheet_width(left: int, strips: Sequence[Strip], title: Sequence[str], font: Font) -> int:
    """Return the width that the tiles, of which the first begins at `left`, and the title need."""
    right = left + TILE
    for strip in strips:
        right += STRIP_GAP - GAP + STEP * strip.columns
    return max(right, GAP + _longest(font, title)) + GAP


def _longest(font: Font, lines: Sequence[str]) -> int:
    """Return the width of the longest line in pixels."""
    return math.ceil(max(map(font.getlength, lines)))


def _abbreviate(name: str) -> str:
    if len(name) <= MAX_NAME:
        return name
    return name[: MAX_NAME - 1] + "…"


def _paste_column(sheet: Image.Image, tiles: Tensor, left: int, top: int) -> None:
    pen = ImageDraw.Draw(sheet)
    for row, tile in enumerate(tiles):
        upper = top + STEP * row
        pen.rectangle((left - 1, upper - 1, left + TILE, upper + TILE), outline=FRAME)
        sheet.paste(draw_tile(tile, TILE), (left, upper))


def _make_views(images: Tensor, strip: Strip, seed: int) -> Tensor:
    """Return uint8 views (columns, n, C, H, W)."""
    shown = ViewGroup(strip.columns, strip.group.size, strip.group.augment)
    uniforms = draw(strip.columns * len(images), torch.Generator().manual_seed(seed), "cpu")
    views = make_views(shown, images, uniforms)
    return (views * 255).round().clamp(0, 255).to(torch.uint8)


def draw_tile(image: Tensor, side: int) -> Image.Image:
    """Return a uint8 image (C, H, W) on a square tile of `side` pixels, scaled to fit.

    Small images are enlarged without smoothing, so that their pixels are visible.
    """
    channels, height, width = image.shape
    if channels >= 3:
        rgb = image[:3]
    else:
        rgb = image[:1].expand(3, height, width)
    picture = Image.fromarray(rgb.permute(1, 2, 0).contiguous().numpy())
    scale = side / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    resample = Image.Resampling.BILINEAR
    if scale >= 1:
        resample = Image.Resampling.NEAREST
    tile = Image.new("RGB", (side, side), "white")
    tile.paste(picture.resize(size, resample), ((side - size[0]) // 2, (side - size[1]) // 2))
    return tile
