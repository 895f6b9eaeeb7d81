"""Public images, which all clients and the server may see, for algorithms that need some.

`[public]` names any data set that `[data]` could name, or `held-out`: then some training images are
public, and no client holds them. Test images are never public.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from PIL import Image
from pydantic import PositiveInt, create_model, model_validator
from torch import Tensor

from fedssl.core.console import Notify
from fedssl.core.errors import ConfigError, DataError
from fedssl.core.settings import Registry
from fedssl.data.decode import fit
from fedssl.data.images import SOURCES, Dataset, Images, Source

HELD_OUT_DIVISOR = 10  # at most one in this many training images is held out
NEVER_PUBLIC = ("given",)  # these are passed as an argument, as the clients' images


class Public(Source):
    """A data set named in `[public]`: its training images, or some of them, are public."""

    images: PositiveInt = 3200  # number drawn; held out, at most a tenth of the training images

    @model_validator(mode="after")
    def _reject_data_keys(self) -> Self:
        if self.mean is not None or self.holdout or self.leave_out:
            raise ValueError(
                "mean, std, holdout and leave_out must be set under [data], "
                "and apply to public images too"
            )
        return self

    def rows(self, count: int, generator: torch.Generator) -> Tensor:
        """Return which of `count` training images are public (n,), ascending.

        No client holds these. The default is none: the public images are from elsewhere.
        """
        return torch.empty(0, dtype=torch.int64)

    def take(self, train: Images, root: Path, generator: torch.Generator, notify: Notify) -> Tensor:
        """Return uint8 (n, C, H, W) with the size and channels of the training images `train`."""
        source = self.load(root, notify).train
        if len(source) < 2:
            raise DataError(
                f"the data set under [public] has {len(source)} images, but at least 2 are needed: "
                "name another one"
            )
        index = torch.randperm(len(source), generator=generator)[: self.images].sort().values
        if len(index) < self.images:
            notify(f"public images: all {len(index):,} that exist, not {self.images:,}")
        return fitted(source.pixel_rows[index], train.image_shape)


class HeldOut(Public):
    """Training images, drawn at random by the run's seed, that are excluded from pre-training."""

    def read(self, root: Path, notify: Notify) -> Dataset:
        raise ConfigError("public images that are held out are not read from files")

    def rows(self, count: int, generator: torch.Generator) -> Tensor:
        number = min(self.images, count // HELD_OUT_DIVISOR)
        if number < 2:
            raise DataError(
                f"public images are drawn from at least {2 * HELD_OUT_DIVISOR} training images, "
                f"but there are {count}: name another data set under [public]"
            )
        return torch.randperm(count, generator=generator)[:number].sort().values

    def take(self, train: Images, root: Path, generator: torch.Generator, notify: Notify) -> Tensor:
        rows = self.rows(len(train), generator)
        notify(
            f"public images: {len(rows):,} of {len(train):,} training images, held out of "
            "pre-training; they are in-domain, of the kind that clients train on"
        )
        return train.pixel_rows[rows]


def fitted(
    pixels: Tensor, image: tuple[int, int, int], *, background: int = 0, pad: bool = False
) -> Tensor:
    """Convert uint8 (n, c, h, w) to images of (C, H, W), by the rules of decode.py."""
    shape = tuple(pixels.shape[1:])
    channels, height, width = image
    if shape == image:
        return pixels
    if {shape[0], channels} - {1, 3} or height != width:
        raise DataError(
            f"images of {shape} (channels, height, width) cannot be converted to {image}"
        )
    arrays = []
    for array in pixels.numpy():
        arrays.append(fit(_to_pillow(array), height, channels, background, pad))
    return torch.from_numpy(np.stack(arrays))


def _to_pillow(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> Image.Image:
    return Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))


class PublicSources(Registry[Public]):
    """Every data set's settings combined with those of `Public`; classes are created on use."""

    def names(self) -> list[str]:
        return sorted({*super().names(), *SOURCES.names()} - {*NEVER_PUBLIC})

    def __getitem__(self, name: str) -> type[Public]:
        if name in SOURCES.names() and name not in (*self._classes, *NEVER_PUBLIC):
            bases: Any = (SOURCES[name], Public)
            self._classes[name] = create_model(f"Public{bases[0].__name__}", __base__=bases)
        return super().__getitem__(name)


PUBLIC = PublicSources("public data set", "fedssl.public")
PUBLIC.register("held-out")(HeldOut)
