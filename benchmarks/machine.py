"""Describe the machine that a measurement was made on."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch

import fedssl


def machine() -> dict[str, Any]:
    """Return processor, versions, threads and, if one is used, the CUDA device, as plain values."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": _processor(),
        "cores": cores,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fedssl": fedssl.__version__,
        "cuda": _cuda() if torch.cuda.is_available() else None,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _cuda() -> dict[str, Any]:
    device = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(device)
    return {
        "device": properties.name,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "driver": _driver(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }


def _driver() -> str | None:
    """Return the driver of the first device by nvidia-smi; all devices share one driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        lines = subprocess.run(  # nosec B603 # nvidia-smi
            command, capture_output=True, text=True, timeout=30, check=True
        ).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return None
    return lines[0] if lines else None
