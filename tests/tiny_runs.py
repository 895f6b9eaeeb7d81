"""Fixtures that train tiny runs for analyses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fedssl
from fedssl.data import Dataset, from_python
from fedssl.experiment.experiment import Experiment

Go = Callable[..., fedssl.Run]
MakeImages = Callable[[int, int], tuple[Tensor, Tensor]]

EXPERIMENT = {
    "rounds": 2,
    "clients": 3,
    "data": {"name": "given"},
    "method": {"name": "byol", "backbone": "cnn", "hidden": 32, "dim": 16},
    "train": {"batch": 8, "checkpoint_every": 0, "schedule": "constant"},
    "probe": {"every": 1, "epochs": 5, "k": 5, "linear": False},
}


def make_images(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return images of three classes that differ in brightness, and their labels."""
    labels = torch.arange(n) % 3
    noise = torch.randint(80, (n, 3, 10, 10), generator=torch.Generator().manual_seed(seed))
    return (noise + 80 * labels[:, None, None, None]).to(torch.uint8), labels


@pytest.fixture(scope="session")
def images() -> MakeImages:
    """images(n, seed): images of three classes and their labels."""
    return make_images


@pytest.fixture(scope="session")
def labelled() -> Dataset:
    """Return 48 training and 24 test images."""
    return from_python(make_images(48, 0), make_images(24, 1))


@pytest.fixture
def go(labelled: Dataset, tmp_path: Path) -> Go:
    """go("folder", **{"topology.name": "isolated"}): a tiny run of three clients."""

    def run(folder: str = "run", dataset: Any = labelled, **changes: Any) -> fedssl.Run:
        experiment = Experiment.from_dict(EXPERIMENT)
        return fedssl.run(
            experiment, tmp_path / folder, "cpu", dataset=dataset, quiet=True, set=changes
        )

    return run
