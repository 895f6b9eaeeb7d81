"""Features of clean images under a frozen backbone: what every probe starts from."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedssl.method import Normalisation
from fedssl.pixels import Rows


class Labelled(NamedTuple):
    """Features (n, d) float32 and labels (n,) int64, on one device."""

    features: Tensor
    labels: Tensor


@torch.inference_mode()
def embed(
    backbone: nn.Module,
    pixels: Tensor | Rows,
    normalisation: Normalisation | None,
    device: torch.device | str,
    batch: int = 1000,
) -> Tensor:
    """uint8 images (n, C, H, W) → features (n, d) in eval mode, float32, on the device."""
    backbone.eval()
    held = Rows(pixels) if isinstance(pixels, Tensor) else pixels
    return torch.cat([backbone(as_input(images.to(device), normalisation)).float() for images in held.chunks(batch)])


def as_input(images: Tensor, normalisation: Normalisation | None) -> Tensor:
    """uint8 (n, C, H, W) as a backbone takes them: float, in 0…1, normalised."""
    x = images.float() / 255
    if normalisation is None:
        return x
    mean, std = (torch.tensor(v, device=x.device)[:, None, None] for v in normalisation)
    return (x - mean) / std


def how_many(labels: float, images: int) -> int:
    """A number of labelled images as settings have it: up to 1, a share of all; above, a count."""
    return max(1, round(labels * images)) if labels <= 1 else int(labels)


def balanced(labels: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Indices (count,) of a random draw with the same number of each class, as nearly as the count allows."""
    order = torch.randperm(len(labels), generator=generator)
    shuffled = labels.cpu()[order]
    rank = torch.zeros(len(labels), dtype=torch.int64)  # the how-manieth of its class each image is
    for label in shuffled.unique():
        mine = shuffled == label
        rank[mine] = torch.arange(int(mine.sum()))
    return order[torch.argsort(rank, stable=True)[:count]].sort().values
