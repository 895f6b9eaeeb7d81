"""A small experiment that needs public images, and a data set for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedssl.data import Dataset, Images
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.overrides import merge_changes

SMALL: dict[str, Any] = {
    "rounds": 2,
    "clients": 3,
    "data": {"name": "given"},
    "method": {"name": "simclr", "backbone": "cnn", "hidden": 8, "dim": 4},
    "algorithm": {"name": "fedca"},
    "train": {"batch": 8, "checkpoint_every": 0},
    "probe": {"every": 0, "linear": False},
}


def experiment(changes: dict[str, Any] | None = None) -> Experiment:
    """Return the small experiment with some settings changed."""
    return Experiment.from_dict(merge_changes(SMALL, changes or {}))


def images(n: int, seed: int = 0) -> Tensor:
    """Return images that differ from each other: the first pixels encode the image's number."""
    pixels = torch.randint(
        256, (n, 3, 10, 10), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )
    pixels[:, 0, 0, 0] = torch.arange(n) % 256
    pixels[:, 0, 0, 1] = torch.arange(n) // 256
    return pixels


def dataset(n: int = 120) -> Dataset:
    """Return labelled images of four owners, and twelve test images."""
    owners = {str(k): torch.arange(k, n, 4) for k in range(4)}
    return Dataset(
        Images(images(n), torch.arange(n) % 6), Images(images(12, 1), torch.arange(12) % 6), owners
    )
