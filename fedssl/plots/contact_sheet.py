"""A contact sheet: a few images and their augmented views in one PNG."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from fedssl.views import ViewGroup, draw, make_views

ROWS = 8
VIEWS = 8
# In pixels:
TILE = 96
GAP = 4
CAPTION = 14


def draw_sheet(images: Tensor, group: ViewGroup, seed: int, path: Path | str) -> None:
    """Write a PNG with a row for each of the first eight uint8 images (n, C, H, W).

    A row has the image and eight views of it. Images of one channel are grey; of images with more
    than three channels the first three are shown.
    """
    images = images[:ROWS].cpu()
    views = _make_views(images, group, seed)
    step = TILE + GAP
    top = GAP + CAPTION
    size = (GAP + step * (VIEWS + 1) + GAP, top + step * len(images))
    sheet = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(sheet)
    for column, tiles in enumerate([images, *views]):
        left = GAP + step * column
        caption = "clean"
        if column > 0:
            left += GAP  # sets the clean images apart
            caption = f"view {column}"
        pen.text((left, GAP // 2), caption, fill="black")
        for index, tile in enumerate(tiles):
            sheet.paste(_tile(tile), (left, top + step * index))
    sheet.save(path)


def _make_views(images: Tensor, group: ViewGroup, seed: int) -> Tensor:
    """Return uint8 views (VIEWS, n, C, H, W)."""
    shown = ViewGroup(VIEWS, group.size, group.augment)
    uniforms = draw(VIEWS * len(images), torch.Generator().manual_seed(seed), "cpu")
    views = make_views(shown, images, uniforms)
    return (views * 255).round().clamp(0, 255).to(torch.uint8)


def _tile(image: Tensor) -> Image.Image:
    """Return a uint8 image (C, H, W) on a square tile, scaled to fit.

    Small images are enlarged without smoothing, so that their pixels are visible.
    """
    channels, height, width = image.shape
    if channels >= 3:
        rgb = image[:3]
    else:
        rgb = image[:1].expand(3, height, width)
    picture = Image.fromarray(rgb.permute(1, 2, 0).contiguous().numpy())
    scale = TILE / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    resample = Image.Resampling.BILINEAR
    if scale >= 1:
        resample = Image.Resampling.NEAREST
    tile = Image.new("RGB", (TILE, TILE), "white")
    tile.paste(picture.resize(size, resample), ((TILE - size[0]) // 2, (TILE - size[1]) // 2))
    return tile
