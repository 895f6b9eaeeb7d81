"""Images with labels that load on demand, and the contract of a source of images."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedssl.core.console import Notify, print_to_stderr
from fedssl.core.errors import DataError
from fedssl.core.settings import Registry, Settings
from fedssl.data.image_pool import PixelRows
from fedssl.data.skipped_files import report_skipped

LabelLoader = Callable[[], Tensor]


class Images:
    """uint8 pixels (N, C, H, W) and, separate from them, int64 labels (N,) that load on first use.

    The pixels are `held` as rows of a pool, which may be a mapped file larger than memory.
    """

    def __init__(
        self,
        pixels: Tensor | PixelRows,
        labels: Tensor | LabelLoader | None = None,
        classes: tuple[str, ...] = (),
    ) -> None:
        self.pixel_rows = PixelRows(pixels) if isinstance(pixels, Tensor) else pixels
        pool = self.pixel_rows.pool
        if pool.dtype != torch.uint8 or pool.ndim != 4:
            raise DataError(
                "images must be uint8 of shape (N, C, H, W); "
                f"got dtype {pool.dtype} and shape {tuple(pool.shape)}"
            )
        self.classes = classes
        self._load_labels: LabelLoader | None
        if isinstance(labels, Tensor):
            tensor = labels
            self._load_labels = lambda: tensor
        elif labels is None:
            self._load_labels = None
        else:
            self._load_labels = cache(labels)

    def __len__(self) -> int:
        return len(self.pixel_rows)

    @property
    def pixels(self) -> Tensor:
        """All pixels as one tensor; for a selection, a copy in memory."""
        return self.pixel_rows.tensor()

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of each image."""
        return self.pixel_rows.image_shape

    @property
    def labelled(self) -> bool:
        """True if labels exist; does not load them."""
        return self._load_labels is not None

    @property
    def labels(self) -> Tensor:
        """int64 (N,)."""
        load = self.label_loader
        if load is None:
            raise DataError("these images have no labels")
        return load()

    @property
    def label_loader(self) -> LabelLoader | None:
        """A function that returns the labels, or None; it holds no reference to the pixels."""
        if self._load_labels is None:
            return None
        return partial(_load_checked, self._load_labels, len(self), self.classes)

    def select(self, index: Tensor) -> Images:
        """Return the images at `index` (n,) without copying pixels or loading labels."""
        load = self._load_labels  # not `self`: the loader must not keep the pixels alive
        pixels = self.pixel_rows.select(index)
        if load is None:
            return Images(pixels, None, self.classes)
        return Images(pixels, lambda: load()[index], self.classes)


def _load_checked(load: LabelLoader, count: int, classes: tuple[str, ...]) -> Tensor:
    labels = load()
    if labels.shape != (count,) or labels.is_floating_point():
        raise DataError(
            f"{count} images need as many integer labels, "
            f"not {labels.dtype} of {tuple(labels.shape)}"
        )
    if count and labels.min() < 0:
        raise DataError("labels must not be negative")
    if count and classes and labels.max() >= len(classes):
        raise DataError(f"label {int(labels.max())} is out of range for {len(classes)} classes")
    return labels.long()


class Dataset(NamedTuple):
    """The images that a source returns."""

    train: Images  # to be assigned to clients
    test: Images | None = None  # to measure with, if they have labels
    owners: Mapping[str, Tensor] | None = None  # client id -> indices into train
    skipped: tuple[str, ...] = ()  # "reason: name" of each file left out


class Source(Settings, ABC):
    """A data set that can be read from files: a subclass defines `read`.

    Its fields are keys under [data].
    """

    mean: tuple[float, ...] | None = None  # per channel, of pixels / 255; None: not normalised
    std: tuple[float, ...] | None = None
    holdout: int = Field(default=0, ge=0)  # training images that replace the test images
    leave_out: float = Field(default=0.0, ge=0, lt=1)  # share of the training images without client

    @model_validator(mode="after")
    def _check_mean_and_std(self) -> Self:
        if (self.mean is None) != (self.std is None):
            raise ValueError("mean and std must be given together")
        if self.mean is not None and self.std is not None:
            if len(self.mean) != len(self.std) or not self.mean:
                raise ValueError("mean and std need one number per channel each")
            if min(self.std) <= 0:
                raise ValueError("std must be above 0")
        return self

    @abstractmethod
    def read(self, root: Path, notify: Notify) -> Dataset:
        """Read all images under `root`; pass one-line progress messages to `notify`."""

    def load(self, root: Path, notify: Notify = print_to_stderr) -> Dataset:
        """Read the images, report the files left out and apply `holdout`.

        The first of these files are named; in logs of fedssl, they are only counted.
        """
        data = self.read(root, notify)
        report_skipped(data.skipped, notify, self.list_skipped)
        return self.apply_holdout(data)

    def list_skipped(self, lines: Sequence[str]) -> Path | None:
        """Write the files left out to a private file if they are many; return its path."""
        return None

    def apply_holdout(self, data: Dataset) -> Dataset:
        """Replace the test images by `holdout` training images, to choose settings on.

        The draw ignores classes and depends only on the two counts, so every run with the same data
        holds out the same images, for any seed.
        """
        if self.holdout == 0:
            return data
        if data.test is not None and data.test.labelled and not data.train.labelled:
            raise DataError(
                "data.holdout would replace the labelled test images by training images, "
                "which have no labels: remove it"
            )
        count = len(data.train)
        if self.holdout >= count:
            raise DataError(
                f"holdout = {self.holdout} would leave nothing of {count} training images"
            )
        order = torch.randperm(count, generator=_holdout_generator(self.holdout, count))
        held_out = order[: self.holdout].sort().values
        kept = order[self.holdout :].sort().values
        owners = None
        if data.owners is not None:
            owners = _renumber(data.owners, kept, count)
        return data._replace(
            train=data.train.select(kept), test=data.train.select(held_out), owners=owners
        )


def _holdout_generator(holdout: int, count: int) -> torch.Generator:
    seed = hashlib.sha256(f"holdout {holdout} of {count}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(seed[:7], "big"))


def _renumber(owners: Mapping[str, Tensor], kept: Tensor, count: int) -> dict[str, Tensor]:
    """Convert indices into all `count` images to indices into the kept ones."""
    new_index = torch.full((count,), -1)
    new_index[kept] = torch.arange(len(kept))
    renumbered = {}
    for client, index in owners.items():
        moved = new_index[index]
        renumbered[client] = moved[moved >= 0]
    return renumbered


SOURCES: Registry[Source] = Registry("data set", "fedssl.data")
