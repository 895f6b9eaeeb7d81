"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), from the binary archive, its extracted files, or an .npz.

A record is one label byte (CIFAR-100: coarse, then fine) and 3 × 32 × 32 pixels. The archive for Python is
not read: it is a pickle.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedssl.data.archive import intact, members
from fedssl.data.fetch import Official, download, find
from fedssl.data.images import SOURCES, Dataset, Images, Source
from fedssl.data.npz import read_npz
from fedssl.data.progress import Say
from fedssl.errors import DataError

_PIXELS = 3 * 32 * 32
_MOST_RECORDS = 1_000_000  # of one file; the largest official one has 50,000
_NAMES_10 = "airplane automobile bird cat deer dog frog horse ship truck"
_NAMES_100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""


class _Files(NamedTuple):
    folder: str
    archive: Official
    extracted: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    label_bytes: int  # the last of them is the label
    classes: tuple[str, ...]


_CIFAR10 = _Files(
    folder="cifar10",
    archive=Official(
        "cifar-10-binary.tar.gz",
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "md5:c32a1d4ab5d03f1284b67883e8d87530",
    ),
    extracted="cifar-10-batches-bin",
    train=tuple(f"data_batch_{k}.bin" for k in range(1, 6)),
    test=("test_batch.bin",),
    label_bytes=1,
    classes=tuple(_NAMES_10.split()),
)
_CIFAR100 = _Files(
    folder="cifar100",
    archive=Official(
        "cifar-100-binary.tar.gz",
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        "md5:03b5dce01913d631647c71ecec9e9cb8",
    ),
    extracted="cifar-100-binary",
    train=("train.bin",),
    test=("test.bin",),
    label_bytes=2,
    classes=tuple(_NAMES_100.split()),
)


@SOURCES.register("cifar10")
class Cifar10(Source):
    def read(self, root: Path, say: Say) -> Dataset:
        return _read(_CIFAR10, root, say)


@SOURCES.register("cifar100")
class Cifar100(Source):
    """The labels are the 100 fine ones."""

    def read(self, root: Path, say: Say) -> Dataset:
        return _read(_CIFAR100, root, say)


def _read(files: _Files, root: Path, say: Say) -> Dataset:
    names = (f"{files.folder}.npz", files.archive.name, files.extracted, files.train[0])
    where = find(root, files.folder, names)
    if where is None:
        where = download(files.archive, root / files.folder / files.archive.name, say)
    if where.suffix == ".npz":
        return read_npz(where, files.classes)
    if where.name == files.train[0]:
        where = where.parent
    train, test = _columns(files, where, slice(files.label_bytes, None))

    # Labels lie between the pixels: they are passed over above, and read anew when somebody asks.
    labels = cache(lambda: _columns(files, where, slice(files.label_bytes - 1, files.label_bytes)))
    return Dataset(
        Images(train.view(-1, 3, 32, 32), lambda: labels()[0].view(-1).long(), files.classes),
        Images(test.view(-1, 3, 32, 32), lambda: labels()[1].view(-1).long(), files.classes),
    )


def _columns(files: _Files, where: Path, columns: slice) -> tuple[Tensor, Tensor]:
    """Some columns of the records (N, label bytes + pixels) of the training and the test images."""
    width = files.label_bytes + _PIXELS
    found: dict[str, npt.NDArray[Any]] = {}
    with intact(where):
        for name, size, stream in members(where, files.train + files.test):
            if size > _MOST_RECORDS * width:
                raise DataError(f"{name} in {where} has {size:,} bytes, too many for a file of this data set")
            data = stream.read()
            if size % width or len(data) != size:
                raise DataError(f"{name} in {where} is not a whole number of records of {width} bytes")
            # Contiguous means copied here, so the file's bytes can go.
            found[name] = np.frombuffer(data, np.uint8).reshape(-1, width)[:, columns].copy()
    train, test = ([torch.from_numpy(found[name]) for name in names] for names in (files.train, files.test))
    return torch.cat(train), torch.cat(test)
