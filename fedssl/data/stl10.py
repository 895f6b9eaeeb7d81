"""STL-10 (Coates, Lee & Ng 2011): 100,000 unlabelled and 5,000 + 8,000 labelled images, 96 × 96."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import IO, Literal

import numpy as np
import torch
from torch import Tensor

from fedssl.core.console import Advance, Notify, meter
from fedssl.core.errors import DataError
from fedssl.data.archive import damage_as_data_error, iter_members
from fedssl.data.download import OfficialFile, download, find
from fedssl.data.images import SOURCES, Dataset, Images, Source

_ARCHIVE = OfficialFile(
    "stl10_binary.tar.gz",
    "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
    "md5:91f7769df0f17e558f3565bffb0c7dfb",
)
_CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
_SHAPE = (3, 96, 96)
_IMAGE_BYTES = 3 * 96 * 96
_MAX_IMAGES = 1_000_000  # of one file; the largest official one has 100,000
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
        where = find(root, "stl10", ["stl10_binary", _ARCHIVE.name, "test_X.bin"])
        if where is None:
            where = download(_ARCHIVE, root / "stl10" / _ARCHIVE.name, notify)
        if where.name == "test_X.bin":
            where = where.parent

        names = _FILES[self.part]
        pixels = _read_pixels(where, (*names, "test_X.bin"), notify)
        train = pixels[names[0]]
        if len(names) > 1:
            train = torch.cat([pixels[name] for name in names])
        labels = _label_loader(where, "train_y.bin") if self.part == "train" else None
        test = Images(pixels["test_X.bin"], _label_loader(where, "test_y.bin"), _CLASSES)
        return Dataset(Images(train, labels, _CLASSES), test)


def _read_pixels(where: Path, names: tuple[str, ...], notify: Notify) -> dict[str, Tensor]:
    pixels: dict[str, Tensor] = {}
    with damage_as_data_error(where):
        for name, size, stream in iter_members(where, names):
            if size % _IMAGE_BYTES:
                raise DataError(
                    f"{name} in {where} is not a whole number of images of {_IMAGE_BYTES} bytes"
                )
            count = size // _IMAGE_BYTES
            if count > _MAX_IMAGES:
                raise DataError(
                    f"{name} in {where} has {size:,} bytes, too many for a file of this data set"
                )
            with meter(f"reading {count:,} images from {name}", count, notify) as advance:
                pixels[name] = _read_transposed(stream, count, advance)
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


def _label_loader(where: Path, name: str) -> Callable[[], Tensor]:
    def load() -> Tensor:
        with damage_as_data_error(where):
            (data,) = [member.stream.read() for member in iter_members(where, [name])]
        return torch.tensor(list(data)) - 1  # the file counts from 1

    return load
