"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): the binary archive, its extracted files, or an .npz.

A record is one label byte (CIFAR-100: coarse, then fine) and 3 × 32 × 32 pixels. The archive for
Python is not supported: it is a pickle.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedssl.core.console import Notify
from fedssl.data.archive import count_records, damage_as_data_error, iter_members
from fedssl.data.download import OfficialFile, find, find_or_download_archive
from fedssl.data.images import SOURCES, Dataset, Images, Source
from fedssl.data.npz import read_npz

_PIXEL_BYTES = 3 * 32 * 32
_NAMES_10 = "airplane automobile bird cat deer dog frog horse ship truck"
_NAMES_100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile
cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp
lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake
spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""


class _Files(NamedTuple):
    """The official files of one of the two data sets."""

    folder: str
    archive: OfficialFile
    extracted: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    label_bytes: int  # the last of them is the label
    classes: tuple[str, ...]


_CIFAR10 = _Files(
    folder="cifar10",
    archive=OfficialFile(
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
    archive=OfficialFile(
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
    """CIFAR-10 (Krizhevsky 2009), from the binary archive, its extracted files, or an .npz."""

    def read(self, root: Path, notify: Notify) -> Dataset:
        return _read(_CIFAR10, root, notify)


@SOURCES.register("cifar100")
class Cifar100(Source):
    """CIFAR-100 (Krizhevsky 2009), likewise; the labels are the 100 fine ones."""

    def read(self, root: Path, notify: Notify) -> Dataset:
        return _read(_CIFAR100, root, notify)


def _read(files: _Files, root: Path, notify: Notify) -> Dataset:
    npz = find(root, files.folder, [f"{files.folder}.npz"])
    if npz is not None:
        return read_npz(npz, files.classes)
    where = find_or_download_archive(
        root,
        files.folder,
        files.archive,
        extracted=files.extracted,
        member=files.train[0],
        notify=notify,
    )
    train, test = _read_columns(files, where, slice(files.label_bytes, None))

    # Labels are stored between the pixels: they were skipped above, and are read on demand.
    label_column = slice(files.label_bytes - 1, files.label_bytes)
    labels = cache(lambda: _read_columns(files, where, label_column))
    return Dataset(
        Images(train.view(-1, 3, 32, 32), lambda: labels()[0].view(-1).long(), files.classes),
        Images(test.view(-1, 3, 32, 32), lambda: labels()[1].view(-1).long(), files.classes),
    )


def _read_columns(files: _Files, where: Path, columns: slice) -> tuple[Tensor, Tensor]:
    """Return some columns of the training and test records (N, label bytes + pixel bytes)."""
    width = files.label_bytes + _PIXEL_BYTES
    parts: dict[str, Tensor] = {}
    with damage_as_data_error(where):
        for member in iter_members(where, files.train + files.test):
            count = count_records(member, width, where)
            records = np.frombuffer(member.stream.read(), np.uint8).reshape(count, width)
            # Copied, so that the file's bytes can be freed.
            parts[member.name] = torch.from_numpy(records[:, columns].copy())
    train = torch.cat([parts[name] for name in files.train])
    test = torch.cat([parts[name] for name in files.test])
    return train, test
