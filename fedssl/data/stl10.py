"""STL-10 (Coates, Lee & Ng 2011): 100,000 unlabelled images, 5,000 + 8,000 labelled ones of 96 × 96."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import IO, Literal

import numpy as np
import torch
from torch import Tensor

from fedssl.data.archive import intact, members
from fedssl.data.fetch import Official, download, find
from fedssl.data.images import SOURCES, Dataset, Images, Source
from fedssl.data.progress import Advance, Say, meter
from fedssl.errors import DataError

_ARCHIVE = Official(
    "stl10_binary.tar.gz",
    "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
    "md5:91f7769df0f17e558f3565bffb0c7dfb",
)
_CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
_SHAPE = (3, 96, 96)
_BYTES = 3 * 96 * 96
_MOST_IMAGES = 1_000_000  # of one file; the largest official one has 100,000
_BLOCK = 500  # images transposed at a time

_FILES = {
    "unlabeled": ("unlabeled_X.bin",),
    "train": ("train_X.bin",),
    "both": ("unlabeled_X.bin", "train_X.bin"),
}


@SOURCES.register("stl10")
class Stl10(Source):
    """`part` says which images to train on; only with "train" do all of them have labels."""

    part: Literal["unlabeled", "train", "both"] = "unlabeled"

    def read(self, root: Path, say: Say) -> Dataset:
        where = find(root, "stl10", ["stl10_binary", _ARCHIVE.name, "test_X.bin"])
        if where is None:
            where = download(_ARCHIVE, root / "stl10" / _ARCHIVE.name, say)
        where = where.parent if where.name == "test_X.bin" else where

        names = _FILES[self.part]
        pixels = _read_pixels(where, (*names, "test_X.bin"), say)
        train = pixels[names[0]] if len(names) == 1 else torch.cat([pixels[name] for name in names])
        labels = _labels(where, "train_y.bin") if self.part == "train" else None
        test = Images(pixels["test_X.bin"], _labels(where, "test_y.bin"), _CLASSES)
        return Dataset(Images(train, labels, _CLASSES), test)


def _read_pixels(where: Path, names: tuple[str, ...], say: Say) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    with intact(where):
        for name, size, stream in members(where, names):
            if size % _BYTES:
                raise DataError(f"{name} in {where} is not a whole number of images of {_BYTES} bytes")
            count = size // _BYTES
            if count > _MOST_IMAGES:
                raise DataError(f"{name} in {where} has {size:,} bytes, too many for a file of this data set")
            with meter(f"reading {count:,} images from {name}", count, say) as advance:
                found[name] = _transposed(stream, count, advance)
    return found


def _transposed(stream: IO[bytes], count: int, advance: Advance) -> Tensor:
    """uint8 (count, 3, 96, 96) from images stored column by column."""
    pixels = torch.empty(count, *_SHAPE, dtype=torch.uint8)
    for start in range(0, count, _BLOCK):
        block = pixels[start : start + _BLOCK]
        data = stream.read(len(block) * _BYTES)
        if len(data) != len(block) * _BYTES:
            raise EOFError("it ends too early")
        columns = np.frombuffer(data, np.uint8).reshape(-1, *_SHAPE)
        block.copy_(torch.from_numpy(columns.swapaxes(2, 3).copy()))
        advance(len(block))
    return pixels


def _labels(where: Path, name: str) -> Callable[[], Tensor]:
    def load() -> Tensor:
        with intact(where):
            (data,) = [member.stream.read() for member in members(where, [name])]
        return torch.tensor(list(data)) - 1  # the file counts from 1

    return load
