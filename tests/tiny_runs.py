"""Fixtures that train tiny runs for analyses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from factories import bright_dataset, bright_pixels, make_experiment
from torch import Tensor

import fedssl
from fedssl.data import Dataset

Go = Callable[..., fedssl.Run]
MakeImages = Callable[[int, int], tuple[Tensor, Tensor]]


@pytest.fixture(scope="session")
def images() -> MakeImages:
    """Return factories.bright_pixels."""
    return bright_pixels


@pytest.fixture(scope="session")
def labelled() -> Dataset:
    """Return 48 training and 24 test images."""
    return bright_dataset()


@pytest.fixture
def go(labelled: Dataset, tmp_path: Path) -> Go:
    """go("folder", **{"topology.name": "isolated"}): train a tiny run of three clients."""

    def run(folder: str = "run", dataset: Any = labelled, **changes: Any) -> fedssl.Run:
        experiment = make_experiment(
            method={"hidden": 32, "dim": 16}, train__schedule="constant", probe__every=1
        )
        return fedssl.run(
            experiment, tmp_path / folder, "cpu", dataset=dataset, quiet=True, set=changes
        )

    return run
