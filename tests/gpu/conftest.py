"""Tests that need a CUDA device; elsewhere they are skipped."""

from __future__ import annotations

import pytest
import torch

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
