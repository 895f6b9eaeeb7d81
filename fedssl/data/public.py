"""Public images: those that everybody may see, for algorithms that need some beside the clients' own.

`[public]` names any data set that `[data]` could name, or `held-out`: then some training images are public, and no
client holds them. Test images never are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from PIL import Image
from pydantic import PositiveInt, create_model, model_validator
from torch import Tensor

from fedssl.data.decode import fit
from fedssl.data.images import SOURCES, Dataset, Images, Source
from fedssl.data.progress import Say
from fedssl.errors import ConfigError, DataError
from fedssl.settings import Registry

MOST_HELD_OUT = 10  # one of so many training images
NEVER = ("given",)  # they come as an argument, and as the clients' images


class Public(Source):
    """A data set as `[public]` has it: its training images, or some of them, are public."""

    images: PositiveInt = 3200  # how many are taken, drawn at random; held out, at most a tenth of the training images

    @model_validator(mode="after")
    def _seen_as_the_others(self) -> Self:
        if self.mean is not None or self.holdout or self.leave_out:
            raise ValueError(
                "mean, std, holdout and leave_out have their place under [data], and hold for public images too"
            )
        return self

    def rows(self, count: int, generator: torch.Generator) -> Tensor:
        """Which of `count` training images are public (n,), in order, so that no client may hold them: none here."""
        return torch.empty(0, dtype=torch.int64)

    def take(self, train: Images, root: Path, generator: torch.Generator, say: Say) -> Tensor:
        """uint8 (n, C, H, W), of the size and with the channels of the training images `train`."""
        found = self.load(root, say).train
        if len(found) < 2:
            raise DataError(f"[public] names {len(found)} images, which is too few")
        some = torch.randperm(len(found), generator=generator)[: self.images].sort().values
        if len(some) < self.images:
            say(f"public images: all {len(some):,} there are, not {self.images:,}")
        return fitted(found.held[some], train.image)


class HeldOut(Public):
    """Training images, drawn at random by the run's seed, that are taken out of pre-training."""

    def read(self, root: Path, say: Say) -> Dataset:
        raise ConfigError("public images that are held out are not read from anywhere")

    def rows(self, count: int, generator: torch.Generator) -> Tensor:
        number = min(self.images, count // MOST_HELD_OUT)
        if number < 2:
            raise DataError(f"{count} training images are too few to hold some out as public ones: name others")
        return torch.randperm(count, generator=generator)[:number].sort().values

    def take(self, train: Images, root: Path, generator: torch.Generator, say: Say) -> Tensor:
        rows = self.rows(len(train), generator)
        say(
            f"public images: {len(rows):,} of {len(train):,} training images, held out of pre-training; "
            "they are in-domain, of the kind that clients train on"
        )
        return train.held[rows]


def fitted(pixels: Tensor, image: tuple[int, int, int]) -> Tensor:
    """uint8 (n, c, h, w) as images of (C, H, W), by the rules that files are decoded by: see decode.py."""
    shape, (channels, height, width) = tuple(pixels.shape[1:]), image
    if shape == image:
        return pixels
    if {shape[0], channels} - {1, 3} or height != width:
        raise DataError(f"images of {shape} (channels, height, width) cannot be made to be of {image}")
    made = [fit(_pillow(each), height, channels) for each in pixels.numpy()]
    return torch.from_numpy(np.stack(made))


def _pillow(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> Image.Image:
    return Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))


class PublicSources(Registry[Public]):
    """Every data set's settings with those of `Public` beside them; they are made when they are asked for."""

    def names(self) -> list[str]:
        return sorted({*super().names(), *SOURCES.names()} - {*NEVER})

    def __getitem__(self, name: str) -> type[Public]:
        if name in SOURCES.names() and name not in (*self._classes, *NEVER):
            bases: Any = (SOURCES[name], Public)
            self._classes[name] = create_model(f"Public{bases[0].__name__}", __base__=bases)
        return super().__getitem__(name)


PUBLIC = PublicSources("public data set", "fedssl.public")
PUBLIC.register("held-out")(HeldOut)
