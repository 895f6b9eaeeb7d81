"""Input shift: each client sees its images rotated or in another style."""

from __future__ import annotations

import math

import pytest
import torch
from client_parts import as_lists, seeded
from torch import Tensor

from fedssl.data import Dataset, Iid, Images, Rotation, Style
from fedssl.data.input_shift import Shifted, rotate


def photos(count: int, *image: int) -> Tensor:
    return torch.randint(256, (count, *(image or (3, 9, 9))), dtype=torch.uint8, generator=seeded())


def seen(partition: Shifted, pixels: Tensor, clients: int) -> tuple[Dataset, dict[str, Tensor]]:
    data = Dataset(Images(pixels, torch.arange(len(pixels)) % 3), Images(pixels[:4]))
    parts = partition.split(data, clients, seeded())
    return partition.shift(data, parts), parts


@pytest.mark.parametrize("partition", [Rotation(), Style()])
def test_images_are_dealt_as_with_iid_and_nothing_but_training_pixels_changes(
    partition: Shifted,
) -> None:
    pixels = photos(30)
    before = pixels.clone()
    data, parts = seen(partition, pixels, 6)
    expected = Iid().split(data, 6, seeded())
    assert as_lists(parts) == as_lists(expected)
    assert torch.equal(pixels, before)
    assert data.test is not None
    assert torch.equal(data.test.pixels, before[:4])
    assert torch.equal(data.train.labels, torch.arange(30) % 3)
    assert data.train.pixels.dtype == torch.uint8
    assert torch.equal(data.train.pixels[parts["0"]], before[parts["0"]])
    assert not torch.equal(data.train.pixels[parts["1"]], before[parts["1"]])


def test_four_clients_turn_by_right_angles() -> None:
    """2πk/4: exactly what moving pixels around gives, for even and odd sides."""
    for side in (8, 9):
        pixels = photos(20, 3, side, side)
        data, parts = seen(Rotation(), pixels, 4)
        for k, index in enumerate(parts.values()):
            assert torch.equal(data.train.pixels[index], torch.rot90(pixels[index], k, (2, 3)))


def test_a_half_turn_of_images_that_are_not_square() -> None:
    pixels = photos(10, 1, 6, 9)
    data, parts = seen(Rotation(), pixels, 2)
    assert torch.equal(data.train.pixels[parts["1"]], pixels[parts["1"]].flip(2, 3))


def test_an_eighth_of_a_turn_keeps_the_disc_and_blackens_the_corners() -> None:
    white = torch.full((1, 1, 33, 33), 255.0)
    turned = rotate(white, math.pi / 4)[0, 0]
    y, x = torch.meshgrid(torch.arange(33) - 16, torch.arange(33) - 16, indexing="ij")
    radius = (x.square() + y.square()).sqrt()
    assert torch.allclose(turned[radius < 15.5], torch.tensor(255.0), atol=1e-2)
    assert turned[0, 0] == turned[0, -1] == turned[-1, 0] == turned[-1, -1] == 0
    assert torch.allclose(
        rotate(rotate(white, 0.3), -0.3)[0, 0, 12:21, 12:21], white[0, 0, 12:21, 12:21], atol=1e-2
    )


def test_a_dot_moves_anticlockwise() -> None:
    """A dot right of the centre is above it after a quarter of a turn, also in a wide image."""
    image = torch.zeros(1, 1, 7, 11)
    image[0, 0, 3, 7] = 200.0
    turned = rotate(image, math.pi / 2)[0, 0]
    assert turned[1, 5].item() == pytest.approx(200, abs=1e-2)
    assert turned.sum().item() == pytest.approx(200, abs=1e-1)


def test_five_styles_by_hand() -> None:
    """A constant image does not show the blur: 127.5 + (100 − 127.5) / 2 = 113.75."""
    pixels = torch.full((12, 1, 4, 4), 100, dtype=torch.uint8)
    data, parts = seen(Style(), pixels, 6)
    expected = [100, 39, 114, 155, 85, 100]
    for index, grey in zip(parts.values(), expected, strict=True):
        assert data.train.pixels[index].unique().tolist() == [grey]


def test_faded_is_blurred_and_posterised_has_four_levels() -> None:
    dot = torch.zeros(1, 1, 3, 3)
    dot[0, 0, 1, 1] = 240
    blurred = torch.tensor([[15.0, 30, 15], [30, 60, 30], [15, 30, 15]])
    assert torch.equal(Style().seen_by(2, 5, dot)[0, 0], 127.5 + (blurred - 127.5) / 2)
    ramp = torch.arange(256.0).view(1, 1, 16, 16)
    assert Style().seen_by(4, 5, ramp).unique(return_counts=True)[0].tolist() == [0, 85, 170, 255]
    assert Style().seen_by(9, 10, ramp).unique(return_counts=True)[1].tolist() == [64] * 4
