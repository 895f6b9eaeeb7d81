"""Shapes, backbones and the settings of a tiny detector."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from shapes import write_shapes

from fedssl import nets
from fedssl.downstream.object_detection.settings import DetectionSettings

TINY = {"iterations": 3, "batch": 2, "size": 64, "width": 8, "regions": 16, "lr": 0.005}


@pytest.fixture
def tiny() -> Callable[..., DetectionSettings]:
    """tiny(freeze=2): a fine-tuning of three steps with narrow heads."""
    return lambda **changes: DetectionSettings(**TINY | changes)


@pytest.fixture
def shapes_of(tmp_path: Path) -> Callable[..., Path]:
    """shapes_of(6, 64): a folder in COCO's layout with six images of 64 pixels in each part."""

    def make(count: int = 4, size: int = 64) -> Path:
        for split in ("train", "val"):
            write_shapes(tmp_path / "shapes", split, count, size)
        return tmp_path / "shapes"

    return make


@pytest.fixture
def export(tmp_path: Path) -> Callable[..., Path]:
    """export("cifar"): an exported ResNet-18 whose statistics are not the initial ones."""

    def make(stem: str = "imagenet", channels: int = 3, /, **header: Any) -> Path:
        with torch.random.fork_rng():
            torch.manual_seed(3)
            backbone = nets.build("resnet18", channels, stem)
            backbone.train()(torch.rand(4, channels, 64, 64))
        about = {
            "backbone": "resnet18",
            "stem": stem,
            "image": [channels, 64, 64],
            "mean": None,
            "std": None,
        } | header
        text = {
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in about.items()
        }
        nets.save_backbone(backbone.state_dict(), tmp_path / "backbone.safetensors", text)
        return tmp_path / "backbone.safetensors"

    return make
