"""Encode images of evaluation for a page: single thumbnails, and a sheet of small ones."""

from __future__ import annotations

import base64
import io
import math

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

TILE = 32  # pixels of an image on the sheet, at most
COLUMNS = 32  # of the sheet
THUMBNAIL = 64  # pixels of a thumbnail, at most
EXACT = 32  # pixels up to which a thumbnail has the image's own pixels
CHUNK = 64  # images that are shrunk together
QUALITY = 80  # of JPEG


def thumbnail(pixels: Tensor) -> str:
    """Return one image (C, H, W) as the address of a picture inside the page."""
    side = max(pixels.shape[1:])
    if side <= EXACT:
        return _address(_to_picture(pixels), "PNG")
    return _address(_to_picture(_shrink(pixels[None], THUMBNAIL)[0]), "JPEG")


def sheet(pixels: Tensor) -> dict[str, str | int]:
    """Return images (n, C, H, W) as one picture of tiles, with the size of a tile."""
    small = _shrink(pixels, TILE)
    count, channels, height, width = small.shape
    rows = math.ceil(count / COLUMNS)
    tiles = torch.zeros(rows * COLUMNS, channels, height, width, dtype=torch.uint8)
    tiles[:count] = small
    grid = tiles.view(rows, COLUMNS, channels, height, width).permute(2, 0, 3, 1, 4)
    whole = grid.reshape(channels, rows * height, COLUMNS * width)
    address = _address(_to_picture(whole), "JPEG")
    return {"src": address, "width": width, "height": height, "columns": COLUMNS, "rows": rows}


def _shrink(pixels: Tensor, side: int) -> Tensor:
    """Return images whose longer side is at most `side`."""
    height, width = pixels.shape[2:]
    scale = side / max(height, width)
    if scale >= 1:
        return pixels
    size = (max(1, round(height * scale)), max(1, round(width * scale)))
    chunks = []
    for chunk in pixels.split(CHUNK):  # as floats, all at once could fill the memory
        chunks.append(F.interpolate(chunk.float(), size, mode="area").round().to(torch.uint8))
    return torch.cat(chunks)


def _to_picture(pixels: Tensor) -> Image.Image:
    """Return pixels (C, H, W) as a picture: grey for one channel, else the first three or grey."""
    channels = pixels.shape[0]
    if channels >= 3:
        return Image.fromarray(pixels[:3].permute(1, 2, 0).contiguous().numpy())
    return Image.fromarray(pixels[0].contiguous().numpy())


def _address(picture: Image.Image, kind: str) -> str:
    buffer = io.BytesIO()
    if kind == "JPEG":
        picture.save(buffer, "JPEG", quality=QUALITY, optimize=True)
    else:
        picture.save(buffer, "PNG", optimize=True)
    encoded = base64.b64encode(buffer.getvalue()).decode()
    return f"data:image/{kind.lower()};base64,{encoded}"
