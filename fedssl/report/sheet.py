"""A contact sheet: what the views of a few images look like to a person."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from fedssl.views import ViewGroup, draw, make_views

ROWS, VIEWS = 8, 8
TILE, GAP, CAPTION = 96, 4, 14  # pixels


def draw_sheet(images: Tensor, group: ViewGroup, seed: int, path: Path | str) -> None:
    """Write a PNG: for each of the first eight uint8 images (n, C, H, W) a row, it itself and eight views.

    Images of one channel are grey; of more than three channels the first three are shown.
    """
    images = images[:ROWS].cpu()
    shown = ViewGroup(VIEWS, group.size, group.augment)
    uniforms = draw(VIEWS * len(images), torch.Generator().manual_seed(seed), "cpu")
    views = (make_views(shown, images, uniforms) * 255).round().clamp(0, 255).to(torch.uint8)
    step, margin = TILE + GAP, GAP + CAPTION
    sheet = Image.new("RGB", (GAP + step * (VIEWS + 1) + GAP, margin + step * len(images)), "white")
    pen = ImageDraw.Draw(sheet)
    captions = ["clean", *(f"view {v + 1}" for v in range(VIEWS))]
    for column, tiles in enumerate([images, *views]):
        left = GAP + step * column + (GAP if column else 0)  # the clean column stands apart
        pen.text((left, GAP // 2), captions[column], fill="black")
        for index, tile in enumerate(tiles):
            sheet.paste(_tile(tile), (left, margin + step * index))
    sheet.save(path)


def _tile(image: Tensor) -> Image.Image:
    """uint8 (C, H, W) on a square tile: small images enlarged pixel by pixel, large ones made to fit."""
    channels, height, width = image.shape
    rgb = image[:3] if channels >= 3 else image[:1].expand(3, height, width)
    picture = Image.fromarray(rgb.permute(1, 2, 0).contiguous().numpy())
    scale = TILE / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    resample = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BILINEAR
    tile = Image.new("RGB", (TILE, TILE), "white")
    tile.paste(picture.resize(size, resample), ((TILE - size[0]) // 2, (TILE - size[1]) // 2))
    return tile
