"""Mixtures of a client's images: the partners, their coefficients, and the signs."""

from __future__ import annotations

import pytest
import torch
from factories import make_client, make_trainer, random_pixels
from torch import Tensor

from fedssl.algorithms import _instahide
from fedssl.algorithms._instahide import LARGEST, coefficients, flipped, mixtures, partners
from fedssl.data.image_pool import PixelRows
from fedssl.training.client import Client


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("k", [2, 3, 4, 7])
def test_coefficients_sum_to_one_and_stay_below_the_limit(k: int) -> None:
    found = coefficients(3000, k, stream())
    assert found.shape == (3000, k)
    torch.testing.assert_close(found.sum(1), torch.ones(3000))
    assert found.min() > 0
    assert 0.95 * min(LARGEST, 1) < found.max() <= LARGEST  # the limit is used, and kept
    torch.testing.assert_close(
        found.mean(0), torch.full((k,), 1 / k), atol=0.02, rtol=0
    )  # no place is preferred


def test_a_single_image_is_itself() -> None:
    assert torch.equal(coefficients(5, 1, stream()), torch.ones(5, 1))


def test_coefficients_of_two_are_uniform_within_the_limit() -> None:
    """Of two, the first is uniform between 0.35 and 0.65: its standard deviation is 0.3/√12."""
    first = coefficients(20000, 2, stream())[:, 0]
    assert 0.35 <= first.min() < 0.351
    assert first.std().item() == pytest.approx(0.3 / 12**0.5, rel=0.02)


@pytest.mark.parametrize(
    ("count", "k", "most"), [(10, 4, 99), (10, 4, 6), (4, 4, 9), (3, 4, 9), (2, 4, 9), (10, 1, 9)]
)
def test_partners(count: int, k: int, most: int) -> None:
    rows = partners(count, k, most, stream())
    assert rows.shape == (min(count, most), min(count, k))
    assert 0 <= rows.min() <= rows.max() < count
    assert all(len(set(row)) == len(row) for row in rows.tolist())  # no image is mixed with itself
    assert len(rows[:, 0].unique()) == len(rows)  # one mixture for an image
    assert count < 3 or not torch.equal(rows, partners(count, k, most, stream(1)))


def test_a_flipped_pixel_is_as_far_from_the_mean_as_before() -> None:
    """Two channels have means of 0.25 and 0.75: a value v stays v or becomes 2 · mean − v."""
    images = (
        torch.rand(64, 2, 8, 8, generator=stream(1)) / 2 + torch.tensor([0, 0.5])[:, None, None]
    )
    found = flipped(images, stream())
    mean = images.mean((0, 2, 3), keepdim=True)
    stayed = torch.isclose(found, images)
    turned = torch.isclose(found, 2 * mean - images)
    assert (stayed | turned).all()
    assert 0.45 < stayed.double().mean() < 0.55
    assert not torch.equal(stayed[:, 0], stayed[:, 1])


def made(client: Client, k: int, limit: int = 99, flips: bool = False) -> Tensor:
    return torch.cat(list(mixtures(client, k, limit, flips)))


@pytest.mark.parametrize("normalised", [False, True])
def test_a_mixture_is_the_weighted_sum_of_its_images(normalised: bool) -> None:
    trainer = make_trainer("mocov2")
    images = random_pixels(11)
    if normalised:
        trainer.method.mean = torch.tensor([0.1, 0.2, 0.3])
        trainer.method.std = torch.tensor([0.5, 0.6, 0.7])
    client = make_client(trainer, images)
    found = made(client, 3)
    rows = partners(11, 3, 99, client.generator("partners"))
    shares = coefficients(11, 3, client.generator("coefficients"))
    for mixed, row, share in zip(found, rows, shares, strict=True):
        expected = sum(w * trainer.method.clean(images[i]) for w, i in zip(share, row, strict=True))
        torch.testing.assert_close(mixed, expected)


def test_mixtures_do_not_depend_on_storage_or_chunk_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer = make_trainer("mocov2")
    images = random_pixels(20)
    expected = made(make_client(trainer, images[5:16]), 4)
    rows = PixelRows(images, torch.arange(5, 16))
    assert torch.equal(made(make_client(trainer, rows), 4), expected)
    monkeypatch.setattr(_instahide, "CHUNK", 3)
    chunks = list(mixtures(make_client(trainer, rows), 4, 99, False))
    assert [len(chunk) for chunk in chunks] == [3, 3, 3, 2]
    torch.testing.assert_close(torch.cat(chunks), expected)


def test_mixtures_differ_by_round_client_and_seed() -> None:
    trainer = make_trainer("mocov2")
    images = random_pixels(8)
    base = made(make_client(trainer, images), 4, flips=True)
    assert torch.equal(made(make_client(trainer, images), 4, flips=True), base)
    for change in ({"round": 3}, {"seed": 2}):
        assert not torch.equal(made(make_client(trainer, images, **change), 4, flips=True), base)


@pytest.mark.parametrize("count", [2, 3, 4, 9])
def test_there_are_as_many_mixtures_as_images_up_to_a_limit(count: int) -> None:
    client = make_client(make_trainer("mocov2"), random_pixels(count))
    assert made(client, 4).shape == (count, 3, 8, 8)
    assert len(made(client, 4, limit=3)) == min(count, 3)


def test_positions_of_rows_reveal_nothing_about_partners() -> None:
    """Distances between rows that share an image are distributed as for any two rows. With partners
    at fixed steps, all pairs would have one of a dozen distances.
    """
    rows = partners(200, 4, 200, torch.Generator().manual_seed(0))
    held = torch.zeros(200, 200).scatter_(1, rows, 1.0)
    shared = (held @ held.T).fill_diagonal_(0) > 0
    apart = torch.tensor([int(shared.diagonal(step).sum()) for step in range(1, 100)])
    assert apart.max() < 40  # of at least 100 pairs each; 16 in 200 share one by chance
