"""A backbone whose features are known by hand, and files of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from fedssl import nets
from fedssl.nets import BACKBONES

WriteBackbone = Callable[..., Path]


class MeanColour(nets.Backbone):
    """The mean of each channel, times its weight."""

    def __init__(self, channels: int = 3, stem: nets.Stem = "cifar") -> None:
        super().__init__()
        self.dim = channels
        self.scale = nn.Parameter(torch.ones(channels))

    def forward(self, images: Tensor) -> Tensor:
        return images.mean((2, 3)) * self.scale


@pytest.fixture
def write_backbone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteBackbone:
    """Return a function that writes an exported backbone and returns its path.

    Keywords are keys of the header; `name` is that of the network.
    """
    BACKBONES.names()
    monkeypatch.setitem(BACKBONES._classes, "mean-colour", MeanColour)

    def write(
        file: str = "backbone.safetensors",
        name: str = "mean-colour",
        image: tuple[int, int, int] = (3, 4, 4),
        norm: nets.Norm = "batch",
        **header: str,
    ) -> Path:
        stem = header.pop("stem", "cifar")
        with torch.random.fork_rng():
            torch.manual_seed(0)
            network = nets.build(name, image[0], stem, norm)
            network.train()
            if name != "mean-colour":
                network(torch.rand(4, *image))  # running statistics that are not 0 and 1
        known = {"format": "pt", "backbone": name, "stem": stem, "image": json.dumps(image)}
        if norm != "batch":
            known["norm"] = norm
        path = tmp_path / file
        nets.save_backbone(network.state_dict(), path, known | header)
        return path

    return write


@pytest.fixture
def put_colour(tmp_path: Path) -> Callable[[str, tuple[int, int, int]], Path]:
    """Return a function that writes a PNG of one colour below the test's folder."""

    def put(name: str, colour: tuple[int, int, int]) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (6, 6), colour).save(path)
        return path

    return put
