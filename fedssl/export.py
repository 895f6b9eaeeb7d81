"""Backbones as files for others to use, and what made them."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from pathlib import Path

import torch

import fedssl
from fedssl import nets
from fedssl.experiment import Experiment
from fedssl.provenance import code
from fedssl.tree import State


def export(
    experiment: Experiment,
    folder: Path,
    models: Mapping[str, State],
    image: tuple[int, int, int],
    rounds: int,
    notes: list[str],
) -> None:
    """backbone.safetensors, or backbone-MODEL.safetensors where a run ends with several."""
    method, data = experiment.to_dict()["method"], experiment.data
    header = {
        "format": "pt",
        "fedssl": fedssl.__version__,
        "experiment": experiment.hash(),
        "method": method["name"],
        "backbone": method["backbone"],
        "stem": method["stem"],
        "rounds": str(rounds),
        "notes": "; ".join(notes),
        "image": json.dumps(image),
        "mean": json.dumps(data.mean),
        "std": json.dumps(data.std),
        "input": "pixels / 255, then (x - mean) / std where mean is given; eval mode",
    }
    for name, state in models.items():
        file = "backbone.safetensors" if len(models) == 1 else nets.backbone_file(name)
        tensors = state.pick(("backbone",)).without_prefix("backbone").tensors()
        nets.save_backbone(tensors, folder / file, header | {"model": name})


def environment(device: torch.device) -> dict[str, str]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "fedssl": fedssl.__version__,
        "code": code(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": f"{device.type}: {name}",
    }
