"""STL-10 (Coates, Lee & Ng 2011): 100,000 unlabelled and 5,000 + 8,000 labelled images, 96 × 96."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import IO, Literal

import numpy as np
import torch
from torch import Tensor

from fedssl.core.console import Advance, Notify, meter
from fedssl.data.archive import count_records, damage_as_data_error, iter_members
from fedssl.data.download import OfficialFile, find_or_download_archive
from fedssl.data.images import SOURCES, Dataset, Images, Source

_ARCHIVE = OfficialFile(
    "stl10_binary.tar.gz",
    "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
    "md5:91f7769df0f17e558f3565bffb0c7dfb",
)
_CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
_SHAPE = (3, 96, 96)
_IMAGE_BYTES = 3 * 96 * 96
_BLOCK = 500  # images transposed at a time

_FILES = {
    "unlabeled": ("unlabeled_X.bin",),
    "train": ("train_X.bin",),
    "both": ("unlabeled_X.bin", "train_X.bin"),
}


@SOURCES.register("stl10")
class Stl10(Source):
    """STL-10; `part` selects the training images. Only those of "train" all have labels."""

    part: Literal["unlabeled", "train", "both"] = "unlabeled"

    def read(self, root: Path, notify: Notify) -> Dataset:
        where = find_or_download_archive(
            root, "stl10", _ARCHIVE, extracted="stl10_binary", member="test_X.bin", notify=notify
        )
        names = _FILES[self.part]
        pixels = _read_pixels(where, (*names, "test_X.bin"), notify)
        train = pixels[names[0]]
        if self.part == "both":
            train = torch.cat([pixels[name] for name in names])
        train_labels = None
        if self.part == "train":
            train_labels = partial(_load_labels, where, "train_y.bin")
        test_labels = partial(_load_labels, where, "test_y.bin")
        return Dataset(
            Images(train, train_labels, _CLASSES),
            Images(pixels["test_X.bin"], test_labels, _CLASSES),
        )


def _read_pixels(where: Path, names: tuple[str, ...], notify: Notify) -> dict[str, Tensor]:
    pixels: dict[str, Tensor] = {}
    with damage_as_data_error(where):
        for member in iter_members(where, names):
            count = count_records(member, _IMAGE_BYTES, where)
            with meter(f"reading {count:,} images from {member.name}", count, notify) as advance:
                pixels[member.name] = _read_transposed(member.stream, count, advance)
    return pixels


def _read_transposed(stream: IO[bytes], count: int, advance: Advance) -> Tensor:
    """Return uint8 (count, 3, 96, 96) from images stored column by column."""
    pixels = torch.empty(count, *_SHAPE, dtype=torch.uint8)
    for start in range(0, count, _BLOCK):
        block = pixels[start : start + _BLOCK]
        data = stream.read(len(block) * _IMAGE_BYTES)
        if len(data) != len(block) * _IMAGE_BYTES:
            raise EOFError("it ends too early")
        columns = np.frombuffer(data, np.uint8).reshape(-1, *_SHAPE)
        block.copy_(torch.from_numpy(columns.swapaxes(2, 3).copy()))
        advance(len(block))
    return pixels


def _load_labels(where: Path, name: str) -> Tensor:
    with damage_as_data_error(where), closing(iter_members(where, [name])) as members:
        data = next(members).stream.read()
    return torch.tensor(list(data)) - 1  # the file counts from 1
