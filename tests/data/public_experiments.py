"""A small experiment that needs public images, and a data set for it."""

from __future__ import annotations

from typing import Any

import torch
from factories import make_experiment, numbered_pixels
from torch import Tensor

from fedssl.data import Dataset, Images
from fedssl.experiment.experiment import Experiment


def experiment(changes: dict[str, Any] | None = None) -> Experiment:
    """Return the small experiment with some settings changed."""
    fedca = make_experiment(method="simclr", algorithm="fedca")
    return fedca.with_changes(changes or {})


def images(n: int, seed: int = 0) -> Tensor:
    """Return images that differ from each other: the first pixels encode the image's number."""
    return numbered_pixels(n, seed, size=10)


def dataset(n: int = 120) -> Dataset:
    """Return labelled images of four owners, and twelve test images."""
    owners = {str(k): torch.arange(k, n, 4) for k in range(4)}
    return Dataset(
        Images(images(n), torch.arange(n) % 6), Images(images(12, 1), torch.arange(12) % 6), owners
    )
