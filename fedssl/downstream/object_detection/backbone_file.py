"""The backbone to fine-tune: an exported file, or the exported file of a run directory."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedssl import nets
from fedssl.core.errors import ConfigError
from fedssl.core.seeds import derive
from fedssl.downstream.exported_files import read_exported

RESNETS = ("resnet18", "resnet34", "resnet50")


class ExportedBackbone(NamedTuple):
    """A backbone's weights and the header of their file."""

    file: Path
    sha256: str
    backbone: str
    stem: str
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    weights: dict[str, Tensor]

    def untrained(self, seed: int) -> ExportedBackbone:
        """Return the same backbone with random weights, drawn as a run draws its initial ones."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive(seed, "untrained backbone"))
            fresh = nets.build(self.backbone, self.channels, self.stem)
        return self._replace(weights=fresh.state_dict())


def read_backbone(file: Path) -> ExportedBackbone:
    """Return an exported backbone; a ConfigError if Mask R-CNN cannot be built on it."""
    header, weights = read_exported(file)
    backbone = header["backbone"]
    if backbone not in RESNETS:
        raise ConfigError(
            f"{file} is a {backbone}: a feature pyramid needs a backbone of four stages, "
            f"{', '.join(RESNETS)}"
        )
    if header.get("norm", "batch") != "batch":
        raise ConfigError(
            f"{file} normalises by groups (method.norm): Mask R-CNN here needs BatchNorm"
        )
    channels = int(json.loads(header["image"])[0])
    if channels not in (1, 3):
        raise ConfigError(
            f"{file} expects images of {channels} channels: image files have 1 (grey) or 3"
        )
    mean = json.loads(header.get("mean", "null"))
    std = json.loads(header.get("std", "null"))
    return ExportedBackbone(
        file=file,
        sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        backbone=backbone,
        stem=header["stem"],
        channels=channels,
        mean=tuple(mean or [0.0] * channels),
        std=tuple(std or [1.0] * channels),
        weights=dict(weights),
    )
