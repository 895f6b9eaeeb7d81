"""Kernels for CUDA, in Triton: what torch would do in several passes over memory, in one. Each has a plain twin in
torch where it is called. Modules of this package import Triton; this file does not."""

from __future__ import annotations

import importlib.util

import torch


def available(device: torch.device) -> bool:
    """Whether these kernels run on a device: CUDA, and Triton beside torch (on Windows it is not)."""
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None
