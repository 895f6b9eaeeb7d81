"""Choose the device that a run trains on, and count the cores of this machine."""

from __future__ import annotations

import os

import torch

from fedssl.core.errors import ConfigError


def resolve_device(name: str) -> torch.device:
    """Return a device by name.

    `auto` is `cuda` if there is any, otherwise `cpu`. `cuda` means all CUDA devices, `cuda:1` one.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f'unknown device "{name}"; try auto, cpu, cuda or cuda:1') from None
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise ConfigError(
            f'fedssl does not train on device "{name}"; try auto, cpu, cuda or cuda:1'
        )
    if (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f'device "{name}" is not available: torch {torch.__version__} detects '
            f"{torch.cuda.device_count()} CUDA devices"
        )
    return device


def training_devices(device: torch.device) -> list[torch.device]:
    """Return the devices that clients train on; sites are merged on the first."""
    if device == torch.device("cuda"):
        return [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    return [device]


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
