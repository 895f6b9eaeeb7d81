"""The backbone a fine-tuning starts from: an exported file, or the one a run directory holds."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import torch
from torch import Tensor

from fedssl import nets
from fedssl.errors import ConfigError
from fedssl.seeds import derive

RESNETS = ("resnet18", "resnet34", "resnet50")


class Start(NamedTuple):
    """A backbone's weights with what its file says about them."""

    file: Path
    sha256: str
    backbone: str
    stem: str
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    weights: dict[str, Tensor]

    def untrained(self, seed: int) -> Start:
        """The same backbone with weights that were drawn, as a run draws its first."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive(seed, "untrained backbone"))
            fresh = nets.build(self.backbone, self.channels, self.stem)
        return self._replace(weights=fresh.state_dict())


def find(place: Path, model: str | None = None) -> Path:
    """The exported file of a run directory, or the file itself; `model` names one where a run has several."""
    if place.is_file():
        return place
    if not place.is_dir():
        raise ConfigError(f"there is no run directory or backbone file {place}")
    if model is not None and (named := place / nets.backbone_file(model)).is_file():
        return named
    found = sorted(place.glob("backbone*.safetensors"))
    if model is None and len(found) == 1:
        return found[0]
    if not found:
        raise ConfigError(f"{place} has no backbone.safetensors: a run writes it when its last round is done")
    names = ", ".join(unquote(file.stem.removeprefix("backbone-")) for file in found)
    wrong = "several backbones" if model is None else f'no backbone "{model}"'
    raise ConfigError(f"{place} has {wrong}, name one with --model: {names}")


def read_start(file: Path) -> Start:
    """Weights and header of an exported backbone; one that Mask R-CNN cannot be built on is refused."""
    about, weights = nets.read_weights(file)
    if not {"backbone", "stem", "image"} <= about.keys():
        raise ConfigError(f"{file} was not exported by fedssl: its header does not say which backbone it is")
    if about["backbone"] not in RESNETS:
        raise ConfigError(
            f"{file} is a {about['backbone']}: a feature pyramid needs a backbone of four stages, {', '.join(RESNETS)}"
        )
    channels = int(json.loads(about["image"])[0])
    if channels not in (1, 3):
        raise ConfigError(f"{file} reads images of {channels} channels: image files have 1 (grey) or 3")
    mean, std = (json.loads(about.get(key, "null")) for key in ("mean", "std"))
    return Start(
        file,
        hashlib.sha256(file.read_bytes()).hexdigest(),
        about["backbone"],
        about["stem"],
        channels,
        tuple(mean or [0.0] * channels),
        tuple(std or [1.0] * channels),
        weights,
    )
