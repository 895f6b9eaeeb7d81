"""Features of clean images under a frozen backbone, which every probe starts from."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedssl.data.image_pool import PixelRows
from fedssl.method import Normalisation

EMBEDDED_AT_ONCE = 1000  # images in a batch


class Labelled(NamedTuple):
    """Features (n, d) float32 and labels (n,) int64, on one device."""

    features: Tensor
    labels: Tensor


@torch.inference_mode()
def embed(
    backbone: nn.Module,
    pixels: Tensor | PixelRows,
    normalisation: Normalisation | None,
    device: torch.device | str,
    batch: int = EMBEDDED_AT_ONCE,
) -> Tensor:
    """Return float32 features (n, d) of uint8 images (n, C, H, W), in eval mode, on the device."""
    backbone.eval()
    rows = PixelRows(pixels) if isinstance(pixels, Tensor) else pixels
    features = []
    for images in rows.chunks(batch):
        x = as_input(images.to(device), normalisation)
        features.append(backbone(x).float())
    return torch.cat(features)


def as_input(images: Tensor, normalisation: Normalisation | None) -> Tensor:
    """Return uint8 images (n, C, H, W) as input of a backbone: float, in 0…1, normalised."""
    x = images.float() / 255
    if normalisation is None:
        return x
    mean, std = (torch.tensor(v, device=x.device)[:, None, None] for v in normalisation)
    return (x - mean) / std


def label_count(labels: float, images: int) -> int:
    """Return a number of labelled images; a setting up to 1 is a share of all, above a count."""
    if labels <= 1:
        return max(1, round(labels * images))
    return int(labels)


def balanced(labels: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return sorted indices (count,) of a random draw, with equal numbers per class if possible."""
    order = torch.randperm(len(labels), generator=generator)
    shuffled = labels.cpu()[order]
    rank = torch.zeros(len(labels), dtype=torch.int64)  # position of each image within its class
    for label in shuffled.unique():
        of_class = shuffled == label
        rank[of_class] = torch.arange(int(of_class.sum()))
    return order[torch.argsort(rank, stable=True)[:count]].sort().values
