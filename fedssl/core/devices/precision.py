"""Process-wide settings of torch during a run: which CUDA kernels it may choose, and how many
threads it uses.

They are restored afterwards, except for CUBLAS_WORKSPACE_CONFIG, which cuBLAS reads only once.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def numerics(
    device: torch.device, deterministic: bool = False, exact: bool = False
) -> Iterator[None]:
    """Use the fastest CUDA kernels, chosen for each layer by trying all of them.

    `deterministic` allows only kernels that give equal bits from run to run. `exact` computes
    products of float32 in float32, not with ten bits of mantissa. On a CPU nothing changes.
    """
    if device.type != "cuda":
        yield
        return
    cudnn: Any = torch.backends.cudnn
    memory: Any = torch.utils.deterministic
    benchmark = cudnn.benchmark
    benchmark_limit = cudnn.benchmark_limit
    fill = memory.fill_uninitialized_memory
    strict = torch.are_deterministic_algorithms_enabled()
    warn = strict and torch.is_deterministic_algorithms_warn_only_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic or strict, warn_only=warn)
    cudnn.benchmark = not deterministic
    cudnn.benchmark_limit = 0
    # We write every byte that we allocate: filling memory first would cost one more pass.
    memory.fill_uninitialized_memory = False
    try:
        precision = float32() if exact else contextlib.nullcontext()
        with precision, warnings.catch_warnings():
            # torch's compiler recommends TF32.
            warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
            yield
    finally:
        cudnn.benchmark = benchmark
        cudnn.benchmark_limit = benchmark_limit
        memory.fill_uninitialized_memory = fill
        torch.use_deterministic_algorithms(strict, warn_only=warn)


@contextlib.contextmanager
def float32() -> Iterator[None]:
    """Compute float32 in float32 on every device: without TF32, torch's default for convolutions on
    CUDA."""
    cudnn: Any = torch.backends.cudnn
    allow_tf32 = cudnn.allow_tf32
    matmul_precision = torch.get_float32_matmul_precision()
    cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        cudnn.allow_tf32 = allow_tf32
        torch.set_float32_matmul_precision(matmul_precision)


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Use `count` threads on a CPU. Clients train with a fixed number: it changes bits."""
    previous = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(previous)
