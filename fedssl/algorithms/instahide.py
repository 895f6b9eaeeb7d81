"""Mixtures of a client's images, as InstaHide makes them.

Huang et al., "InstaHide: instance-hiding schemes for private distributed learning", ICML 2020, inside one data set: a
mixture is Σ λ_i·x_i over k images, with a random sign for every pixel. Carlini et al., "Is private learning possible
with instance encoding?", S&P 2021, take such images apart again: this obfuscates, it does not protect.
Departures: signs are flipped around each channel's mean, which stays where it was, so that the network which is to
make features of mixtures meets pixels on the scale it knows.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fedssl.client import Client

LARGEST = 0.65  # no image makes up more of a mixture
AT_A_TIME = 128  # mixtures


def mixtures(client: Client, k: int, most: int, flips: bool) -> Iterator[Tensor]:
    """Inputs (m, C, H, W) mixed from k images each, some at a time: one mixture for each of the client's images, of at
    most `most` of them. A client with fewer than k images mixes all it has."""
    rows = partners(client.count, k, most, client.generator("partners"))
    count, k = rows.shape
    weights = coefficients(count, k, client.generator("coefficients")).to(client.trainer.device)
    signs = client.generator("signs", client.trainer.device)
    chunks = client.chunks(rows.flatten(), AT_A_TIME * k)
    for images, share in zip(chunks, weights.split(AT_A_TIME), strict=True):
        mixed = torch.einsum("nkchw,nk->nchw", client.method.clean(images).unflatten(0, share.shape), share)
        yield flipped(mixed, signs) if flips else mixed


def warning_of(k: int) -> str:
    """What a user should know who has features of such mixtures shared."""
    if k == 1:
        return "clients share features of their images, which are not even mixed"
    return (
        "clients share features of images mixed as by InstaHide, which has been broken (Carlini et al., 2021): "
        "this is obfuscation, no privacy is claimed"
    )


def partners(count: int, k: int, most: int, generator: torch.Generator) -> Tensor:
    """Rows (min(count, most), min(k, count)) of numbers below `count`. In a row all differ; no two begin alike. Where a
    row stands says nothing of what is in it."""
    first = torch.randperm(count, generator=generator)[:most, None]
    rows = torch.cat([first, first.expand(-1, min(k, count) - 1)], 1)
    while (again := _repeats(rows)).any():
        fresh = torch.randint(count, (int(again.sum()), rows.shape[1] - 1), generator=generator)
        rows[again] = torch.cat([first[again], fresh], 1)
    return rows


def _repeats(rows: Tensor) -> Tensor:
    """(n,): whether a number comes twice in a row of (n, k)."""
    return (rows.sort(1).values.diff(dim=1) == 0).any(1)


def coefficients(n: int, k: int, generator: torch.Generator) -> Tensor:
    """(n, k), uniform among those that are positive, sum to 1 in each row and do not exceed LARGEST; of one, 1."""
    drawn = torch.empty(n, k).exponential_(generator=generator)
    drawn /= drawn.sum(1, keepdim=True)
    too_large = drawn.amax(1) > LARGEST
    if k > 1 and too_large.any():
        drawn[too_large] = coefficients(int(too_large.sum()), k, generator)
    return drawn


def flipped(images: Tensor, generator: torch.Generator) -> Tensor:
    """Images (n, C, H, W) with a random sign for every pixel, counted from the mean of its channel."""
    mean = images.mean((0, 2, 3), keepdim=True)
    signs = torch.randint(2, images.shape, generator=generator, device=images.device) * 2 - 1
    return mean + signs * (images - mean)
