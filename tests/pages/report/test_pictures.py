"""Pictures inside a page have the pixels of the images."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
import torch
from factories import random_pixels
from PIL import Image
from torch import Tensor

from fedssl.pages.report.pictures import sheet, thumbnail


def _decode(address: str) -> Image.Image:
    kind, _, data = address.partition(";base64,")
    assert kind in ("data:image/png", "data:image/jpeg")
    return Image.open(io.BytesIO(base64.b64decode(data)))


@pytest.mark.parametrize("channels", [1, 3])
def test_a_small_thumbnail_is_exact(channels: int) -> None:
    (image,) = random_pixels(1, channels=channels)
    decoded = torch.from_numpy(np.array(_decode(thumbnail(image))))
    expected = image[0] if channels == 1 else image.permute(1, 2, 0)
    assert torch.equal(decoded, expected)


def test_images_of_other_channels_are_grey_or_have_the_first_three() -> None:
    assert _decode(thumbnail(random_pixels(1, channels=2)[0])).mode == "L"
    assert _decode(thumbnail(random_pixels(1, channels=5)[0])).mode == "RGB"


def test_a_large_thumbnail_is_shrunk_and_keeps_its_shape() -> None:
    image = torch.zeros(3, 100, 200, dtype=torch.uint8)
    assert _decode(thumbnail(image)).size == (64, 32)


def test_shrunk_pixels_are_means_of_squares() -> None:
    """100 images of 64 pixels in rows of 0 and 100: each pixel of 32 is the mean of four."""
    pixels = torch.zeros(100, 1, 64, 64, dtype=torch.uint8)
    pixels[:, :, ::2] = 100
    decoded = np.array(_decode(str(sheet(pixels)["src"])))
    assert decoded.shape == (4 * 32, 32 * 32)
    assert np.abs(decoded[: 3 * 32].astype(int) - 50).max() <= 2  # JPEG


def test_a_sheet_has_32_tiles_in_a_row() -> None:
    """40 images: the last is in row 1, column 7."""
    pixels = torch.zeros(40, 1, 8, 8, dtype=torch.uint8)
    pixels[39] = 255
    made = sheet(pixels)
    decoded = np.array(_decode(str(made["src"])))
    assert decoded.shape == (2 * 8, 32 * 8)
    assert _mean(decoded[8:, 56:64]) > 250
    assert _mean(decoded[:8]) < 5
    assert (made["width"], made["rows"], made["columns"]) == (8, 2, 32)


def _mean(pixels: object) -> float:
    return float(Tensor.float(torch.tensor(pixels)).mean())
