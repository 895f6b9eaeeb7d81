"""Tiny ImageNet (Stanford CS231n): 200 classes of 500 images, 64 × 64; the test images are its val images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from fedssl.data.archive import listing
from fedssl.data.decoders import decode_all
from fedssl.data.fetch import Official, download, find
from fedssl.data.images import SOURCES, Dataset, Images, Source
from fedssl.data.progress import Say
from fedssl.errors import DataError

_NAME = "tiny-imagenet-200"
_ARCHIVE = Official(
    f"{_NAME}.zip",
    f"http://cs231n.stanford.edu/{_NAME}.zip",
    "md5:90528d7ca1a48142e341f4ef8d21d0de",
)

Read = Callable[[str], bytes]


@SOURCES.register("tiny-imagenet")
class TinyImageNet(Source):
    """Read from the zip archive or from the folder it was extracted to."""

    def read(self, root: Path, say: Say) -> Dataset:
        where = find(root, "tiny-imagenet", [_NAME, _ARCHIVE.name, "wnids.txt"])
        if where is None:
            where = download(_ARCHIVE, root / "tiny-imagenet" / _ARCHIVE.name, say)
        where = where.parent if where.name == "wnids.txt" else where
        names, read = listing(where, _NAME)
        if "wnids.txt" not in names or "val/val_annotations.txt" not in names:
            raise DataError(f"{where} lacks wnids.txt or val/val_annotations.txt")
        ids = sorted(_text("wnids.txt", read).split())
        number = {wordnet_id: k for k, wordnet_id in enumerate(ids)}
        classes = _words(ids, read) if "words.txt" in names else tuple(ids)

        train = [name for name in names if name.startswith("train/") and name.endswith(".JPEG")]
        test = [name for name in names if name.startswith("val/images/")]
        return Dataset(
            Images(_pixels(train, read, say), lambda: _folder_labels(train, number), classes),
            Images(_pixels(test, read, say), lambda: _listed_labels(test, number, read), classes),
        )


def _pixels(names: list[str], read: Read, say: Say) -> Tensor:
    pixels, bad = decode_all(names, read, 64, 3, say)
    if bad:  # official images are all good, so the copy is not
        place, reason = next(iter(bad.items()))
        raise DataError(f"{len(bad)} images of Tiny ImageNet cannot be read; the first is {names[place]}: {reason}")
    return pixels


def _text(name: str, read: Read) -> str:
    try:
        return read(name).decode()
    except UnicodeDecodeError:
        raise DataError(f"{name} of Tiny ImageNet is damaged: it is not text") from None


def _folder_labels(names: list[str], number: dict[str, int]) -> Tensor:
    """From train/<WordNet id>/images/<name>."""
    try:
        return torch.tensor([number[name.split("/")[1]] for name in names])
    except KeyError as failure:
        raise DataError(f"Tiny ImageNet has a folder {failure}, which wnids.txt does not list") from None


def _listed_labels(names: list[str], number: dict[str, int], read: Read) -> Tensor:
    """From lines of file name, WordNet id and a box, tab-separated."""
    rows = [line.split("\t") for line in _text("val/val_annotations.txt", read).splitlines()]
    try:
        label = {row[0]: number[row[1]] for row in rows}
        return torch.tensor([label[name.rpartition("/")[2]] for name in names])
    except (IndexError, KeyError) as failure:
        raise DataError(f"val/val_annotations.txt of Tiny ImageNet is damaged ({failure})") from None


def _words(ids: list[str], read: Read) -> tuple[str, ...]:
    """The first of the words that describe each WordNet id."""
    rows = (line.split("\t") for line in _text("words.txt", read).splitlines())
    words = {row[0]: row[1].split(",")[0] for row in rows if len(row) == 2}
    return tuple(words.get(wordnet_id, wordnet_id) for wordnet_id in ids)
