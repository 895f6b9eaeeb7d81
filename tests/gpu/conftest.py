"""Tests that need a CUDA device; elsewhere they are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedssl.core.devices.precision import numerics
from fedssl.data.fashion_mini import FashionMini

CUDA = torch.device("cuda")

# torch.compile reads `.grad` of tensors that are not leaves, and fails if its warning is an error.
ALLOW_WARNINGS = pytest.mark.filterwarnings("default")
NEEDS_CUDA = pytest.mark.skip(reason="needs a CUDA device")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/gpu" not in item.path.as_posix():
            continue
        item.add_marker(ALLOW_WARNINGS)
        if not torch.cuda.is_available():
            item.add_marker(NEEDS_CUDA)


@pytest.fixture(scope="module")
def pixels() -> Tensor:
    """Real images (2048, 3, 32, 32): with noise, rounding errors would grow from step to step."""
    images = FashionMini().load(Path(), lambda line: None).train.pixels[:2048].float()
    enlarged = torch.nn.functional.interpolate(images, 32).to(torch.uint8)
    return enlarged.expand(-1, 3, -1, -1).contiguous().to(CUDA)


@pytest.fixture
def exact_arithmetic() -> Iterator[None]:
    """Use deterministic kernels, and float32 without TF32."""
    with numerics(CUDA, deterministic=True, exact=True):
        yield
