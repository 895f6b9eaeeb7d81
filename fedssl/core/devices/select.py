"""Choose the device that a run trains on."""

from __future__ import annotations

import torch

from fedssl.core.errors import ConfigError


def resolve_device(name: str) -> torch.device:
    """`auto`: all CUDA devices if there are any, else the CPU. `cuda` means all of them, `cuda:1` that one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(
            f'device "{name}" is not one torch knows; try auto, cpu, cuda or cuda:1'
        ) from None
    if device.type == "cpu":
        return torch.device("cpu")  # there is but one
    if device.type != "cuda":
        raise ConfigError(
            f'device "{name}" is not one fedssl trains on; try auto, cpu, cuda or cuda:1'
        )
    if (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f'device "{name}" is not there: torch {torch.__version__} sees {torch.cuda.device_count()} CUDA devices'
        )
    return device


def training_devices(device: torch.device) -> list[torch.device]:
    """Those that clients are spread over; the first is where sites are merged and models measured."""
    if device == torch.device("cuda"):
        return [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    return [device]
