"""Images, their labels apart from them, and what a source of images is."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedssl.data.progress import Say, on_a_terminal, say_on_stderr, unnamed
from fedssl.errors import DataError
from fedssl.pixels import Rows
from fedssl.settings import Registry, Settings

LISTED = 20  # files left out that are named

LabelLoader = Callable[[], Tensor]


class Images:
    """uint8 pixels (N, C, H, W) and, apart from them, int64 labels (N,), loaded only when asked for.

    The pixels are `held` as rows of a pool, which may be a mapped file larger than memory.
    """

    def __init__(
        self, pixels: Tensor | Rows, labels: Tensor | LabelLoader | None = None, classes: tuple[str, ...] = ()
    ) -> None:
        self.held = Rows(pixels) if isinstance(pixels, Tensor) else pixels
        pool = self.held.pool
        if pool.dtype != torch.uint8 or pool.ndim != 4:
            raise DataError(f"images must be uint8 of shape (N, C, H, W), not {pool.dtype} of {tuple(pool.shape)}")
        self.classes = classes
        self._load: LabelLoader | None
        if isinstance(labels, Tensor):
            known = labels
            self._load = lambda: known
        else:
            self._load = labels if labels is None else cache(labels)

    def __len__(self) -> int:
        return len(self.held)

    @property
    def pixels(self) -> Tensor:
        """All of them as one tensor; of a selection, a copy in memory."""
        return self.held.tensor()

    @property
    def image(self) -> tuple[int, int, int]:
        """(C, H, W) of each."""
        return self.held.image

    @property
    def labelled(self) -> bool:
        """Whether labels could be had; asking does not load them."""
        return self._load is not None

    @property
    def labels(self) -> Tensor:
        """int64 (N,)."""
        load = self.label_loader
        if load is None:
            raise DataError("these images have no labels")
        return load()

    @property
    def label_loader(self) -> LabelLoader | None:
        """How to get the labels, should anybody ask; it does not hold on to the pixels."""
        return None if self._load is None else partial(_checked, self._load, len(self), self.classes)

    def select(self, index: Tensor) -> Images:
        """The images at `index` (n,): no pixel is copied, and their labels are as lazy as before."""
        load = self._load  # not `self`: labels must not keep pixels alive
        picked = None if load is None else lambda: load()[index]
        return Images(self.held.select(index), picked, self.classes)


def _checked(load: LabelLoader, count: int, classes: tuple[str, ...]) -> Tensor:
    labels = load()
    if labels.shape != (count,) or labels.is_floating_point():
        raise DataError(f"{count} images need as many whole labels, not {labels.dtype} of {tuple(labels.shape)}")
    if count and labels.min() < 0:
        raise DataError("labels must not be negative")
    if count and classes and labels.max() >= len(classes):
        raise DataError(f"label {int(labels.max())} is beyond the {len(classes)} classes there are")
    return labels.long()


class Dataset(NamedTuple):
    """What a source gives."""

    train: Images
    test: Images | None = None
    owners: Mapping[str, Tensor] | None = None  # client id -> indices into train, where the data has owners
    skipped: tuple[str, ...] = ()  # one line per file left out: the reason, then its name relative to the root


class Source(Settings, ABC):
    """Where images come from."""

    mean: tuple[float, ...] | None = None  # per channel, of pixels / 255; None: pixels are not normalised
    std: tuple[float, ...] | None = None
    holdout: int = Field(default=0, ge=0)  # this many training images take the place of the test images
    leave_out: float = Field(default=0.0, ge=0, lt=1)  # share of the training images that no client gets

    @model_validator(mode="after")
    def _mean_with_std(self) -> Self:
        if (self.mean is None) != (self.std is None):
            raise ValueError("mean and std come together or not at all")
        if self.mean is not None and self.std is not None:
            if len(self.mean) != len(self.std) or not self.mean:
                raise ValueError("mean and std need one number per channel each")
            if min(self.std) <= 0:
                raise ValueError("std must be above 0")
        return self

    @abstractmethod
    def read(self, root: Path, say: Say) -> Dataset:
        """All images found under `root`; `say` gets one-line messages on the way."""

    def load(self, root: Path, say: Say = say_on_stderr) -> Dataset:
        """`read`, then `set_aside`; files that were left out are named on a terminal, and counted elsewhere."""
        data = self.read(root, say)
        if data.skipped:
            files = "1 file" if len(data.skipped) == 1 else f"{len(data.skipped)} files"
            say(f"left out {files}{unnamed()}:\n  " + "\n  ".join(_listed(data.skipped)))
        return self.set_aside(data)

    def set_aside(self, data: Dataset) -> Dataset:
        """Put `holdout` training images in place of the test images, which are then never seen.

        Settings are chosen on these. The draw is blind to classes and depends on nothing but the two counts,
        so every run with the same data holds out the same images, whatever its seed.
        """
        if self.holdout == 0:
            return data
        if data.test is not None and data.test.labelled and not data.train.labelled:
            raise DataError(
                "data.holdout would put training images, which have no labels, in the place of the labelled test "
                "images: leave it out"
            )
        count = len(data.train)
        if self.holdout >= count:
            raise DataError(f"holdout = {self.holdout} would leave nothing of {count} training images")
        seed = hashlib.sha256(f"holdout {self.holdout} of {count}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(seed[:7], "big"))
        order = torch.randperm(count, generator=generator)
        held, kept = order[: self.holdout].sort().values, order[self.holdout :].sort().values
        owners = None if data.owners is None else _renumber(data.owners, kept, count)
        return data._replace(train=data.train.select(kept), test=data.train.select(held), owners=owners)


def _listed(skipped: tuple[str, ...]) -> list[str]:
    """Up to so many files by name, where names may be shown; else how many there are for each reason."""
    if not on_a_terminal():
        reasons = Counter(line.partition(": ")[0] for line in skipped)
        return [f"{reason}: {count}" for reason, count in sorted(reasons.items())]
    more = len(skipped) - LISTED
    return [*skipped[:LISTED], *([f"and {more} more"] if more > 0 else [])]


def _renumber(owners: Mapping[str, Tensor], kept: Tensor, count: int) -> dict[str, Tensor]:
    place = torch.full((count,), -1)
    place[kept] = torch.arange(len(kept))
    return {client: place[index][place[index] >= 0] for client, index in owners.items()}


SOURCES: Registry[Source] = Registry("data set", "fedssl.data")
