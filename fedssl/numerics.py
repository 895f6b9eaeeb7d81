"""Which kernels CUDA's libraries may choose while a run goes on, and how many threads torch has: process-wide settings,
put back afterwards. Only CUBLAS_WORKSPACE_CONFIG stays: cuBLAS reads it once."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def numerics(device: torch.device, deterministic: bool = False, exact: bool = False) -> Iterator[None]:
    """The fastest kernels, each layer's found by trying them all; `deterministic`: only those that give equal bits from
    run to run. `exact`: float32 means float32, not its products with ten bits of mantissa. On a CPU nothing changes."""
    if device.type != "cuda":
        yield
        return
    cudnn: Any = torch.backends.cudnn
    fill: Any = torch.utils.deterministic
    found = cudnn.benchmark, cudnn.benchmark_limit, fill.fill_uninitialized_memory
    strict = torch.are_deterministic_algorithms_enabled()
    warn = strict and torch.is_deterministic_algorithms_warn_only_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic or strict, warn_only=warn)
    cudnn.benchmark, cudnn.benchmark_limit = not deterministic, 0
    fill.fill_uninitialized_memory = False  # every byte we allocate we write: filling it first costs a pass
    try:
        with float32() if exact else contextlib.nullcontext(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")  # torch's compiler would have it
            yield
    finally:
        cudnn.benchmark, cudnn.benchmark_limit, fill.fill_uninitialized_memory = found
        torch.use_deterministic_algorithms(strict, warn_only=warn)


@contextlib.contextmanager
def float32() -> Iterator[None]:
    """float32 means float32 within, on every device: no TF32, which is torch's default for convolutions on CUDA."""
    cudnn: Any = torch.backends.cudnn
    convolutions, products = cudnn.allow_tf32, torch.get_float32_matmul_precision()
    cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        cudnn.allow_tf32 = convolutions
        torch.set_float32_matmul_precision(products)


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """As many for torch on a CPU as a client trains with: their number changes bits."""
    found = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(found)
