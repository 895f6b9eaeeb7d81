"""Mixtures of a client's images, as InstaHide makes them.

Huang et al., "InstaHide: instance-hiding schemes for private distributed learning", ICML 2020,
inside one data set: a mixture is Σ λ_i·x_i over k images, with a random sign for every pixel.
Carlini et al., "Is private learning possible with instance encoding?", S&P 2021, recover the
original images: this obfuscates, it does not protect.
Departures: signs are flipped around each channel's mean, which does not change, so that a network
that computes features of mixtures receives pixels on their usual scale.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fedssl.training.client import Client

LARGEST = 0.65  # the largest share of one image in a mixture
CHUNK = 128  # mixtures computed at a time


def mixtures(client: Client, k: int, limit: int, flips: bool) -> Iterator[Tensor]:
    """Yield inputs (m, C, H, W) mixed from k images each, up to CHUNK at a time.

    There is one mixture for each of the client's images, of at most `limit` of them. A client with
    fewer than k images mixes all of them.
    """
    rows = mixed_images(client, k, limit)
    count, k = rows.shape
    weights = coefficients(count, k, client.generator("coefficients")).to(client.trainer.device)
    signs = client.generator("signs", client.trainer.device)
    chunks = client.chunks(rows.flatten(), CHUNK * k)
    for images, share in zip(chunks, weights.split(CHUNK), strict=True):
        inputs = client.method.clean(images).unflatten(0, share.shape)
        mixed = torch.einsum("nkchw,nk->nchw", inputs, share)
        if flips:
            mixed = flipped(mixed, signs)
        yield mixed


def mixed_images(client: Client, k: int, limit: int) -> Tensor:
    """Return the numbers (m, k) of the images in each mixture of a client's round."""
    return partners(client.count, k, limit, generator=client.generator("partners"))


def warning_of(k: int) -> str:
    """Return a warning for users who share features of mixtures of k images."""
    if k == 1:
        return "clients share features of images that are not even mixed: no privacy is claimed"
    return (
        "clients share features of images mixed as by InstaHide, which has been broken "
        "(Carlini et al., 2021): this is obfuscation, no privacy is claimed"
    )


def partners(count: int, k: int, limit: int, generator: torch.Generator) -> Tensor:
    """Return rows (min(count, limit), min(k, count)) of different numbers below `count`.

    No two rows begin with the same number. The order of the rows is random.
    """
    first = torch.randperm(count, generator=generator)[:limit, None]
    rows = torch.cat([first, first.expand(-1, min(k, count) - 1)], 1)
    repeated = _has_repeats(rows)
    while repeated.any():
        size = (int(repeated.sum()), rows.shape[1] - 1)
        fresh = torch.randint(count, size, generator=generator)
        rows[repeated] = torch.cat([first[repeated], fresh], 1)
        repeated = _has_repeats(rows)
    return rows


def _has_repeats(rows: Tensor) -> Tensor:
    """Return (n,): True where a number occurs twice in a row of (n, k)."""
    return (rows.sort(1).values.diff(dim=1) == 0).any(1)


def coefficients(n: int, k: int, generator: torch.Generator) -> Tensor:
    """Return (n, k) positive numbers that sum to 1 in each row, each at most LARGEST.

    Rows are uniform among those that qualify; with k = 1, the coefficient is 1.
    """
    drawn = torch.empty(n, k).exponential_(generator=generator)
    drawn /= drawn.sum(1, keepdim=True)
    too_large = drawn.amax(1) > LARGEST
    if k > 1 and too_large.any():
        drawn[too_large] = coefficients(int(too_large.sum()), k, generator)
    return drawn


def flipped(images: Tensor, generator: torch.Generator) -> Tensor:
    """Return images (n, C, H, W) with a random sign per pixel, around the mean of its channel."""
    mean = images.mean((0, 2, 3), keepdim=True)
    signs = torch.randint(2, images.shape, generator=generator, device=images.device) * 2 - 1
    return mean + signs * (images - mean)
