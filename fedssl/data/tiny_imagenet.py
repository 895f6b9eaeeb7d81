"""Tiny ImageNet (Stanford CS231n): 200 classes of 500 images, 64 × 64; tested on its val images."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from fedssl.core.console import Notify
from fedssl.core.errors import DataError
from fedssl.data.archive import ReadFile, list_files
from fedssl.data.decode_parallel import decode_all
from fedssl.data.download import OfficialFile, find_or_download_archive
from fedssl.data.images import SOURCES, Dataset, Images, Source

_NAME = "tiny-imagenet-200"
_ARCHIVE = OfficialFile(
    f"{_NAME}.zip",
    f"http://cs231n.stanford.edu/{_NAME}.zip",
    "md5:90528d7ca1a48142e341f4ef8d21d0de",
)


@SOURCES.register("tiny-imagenet")
class TinyImageNet(Source):
    """Tiny ImageNet, from the zip archive or from the folder it was extracted to."""

    def read(self, root: Path, notify: Notify) -> Dataset:
        where = find_or_download_archive(
            root, "tiny-imagenet", _ARCHIVE, extracted=_NAME, member="wnids.txt", notify=notify
        )
        names, read = list_files(where, _NAME)
        if "wnids.txt" not in names or "val/val_annotations.txt" not in names:
            raise DataError(f"{where} lacks wnids.txt or val/val_annotations.txt")
        ids = sorted(_read_text("wnids.txt", read).split())
        numbers = {wordnet_id: k for k, wordnet_id in enumerate(ids)}
        classes = _class_names(ids, read) if "words.txt" in names else tuple(ids)

        train = []
        test = []
        for name in names:
            if name.startswith("train/") and name.endswith(".JPEG"):
                train.append(name)
            elif name.startswith("val/images/"):
                test.append(name)
        return Dataset(
            Images(_decode(train, read, notify), lambda: _train_labels(train, numbers), classes),
            Images(_decode(test, read, notify), lambda: _test_labels(test, numbers, read), classes),
        )


def _decode(names: list[str], read: ReadFile, notify: Notify) -> Tensor:
    pixels, bad = decode_all(names, read, size=64, channels=3, notify=notify)
    if bad:  # the official images are all readable, so this copy is damaged
        position, reason = next(iter(bad.items()))
        raise DataError(
            f"{len(bad)} images of Tiny ImageNet cannot be read; "
            f"the first is {names[position]}: {reason}"
        )
    return pixels


def _read_text(name: str, read: ReadFile) -> str:
    try:
        return read(name).decode()
    except UnicodeDecodeError:
        raise DataError(f"{name} of Tiny ImageNet is damaged: it is not text") from None


def _read_table(name: str, read: ReadFile) -> list[list[str]]:
    """Return the tab-separated fields of each line."""
    return [line.split("\t") for line in _read_text(name, read).splitlines()]


def _train_labels(names: list[str], numbers: dict[str, int]) -> Tensor:
    """Return the label of each file train/<WordNet id>/images/<name>."""
    try:
        return torch.tensor([numbers[name.split("/")[1]] for name in names])
    except KeyError as error:
        raise DataError(
            f"Tiny ImageNet has a folder {error}, which wnids.txt does not list"
        ) from None


def _test_labels(names: list[str], numbers: dict[str, int], read: ReadFile) -> Tensor:
    """Return labels from lines of file name, WordNet id and a box."""
    labels = {}
    try:
        for file_name, wordnet_id, *_ in _read_table("val/val_annotations.txt", read):
            labels[file_name] = numbers[wordnet_id]
        return torch.tensor([labels[name.rpartition("/")[2]] for name in names])
    except (ValueError, KeyError) as error:
        raise DataError(f"val/val_annotations.txt of Tiny ImageNet is damaged ({error})") from None


def _class_names(ids: list[str], read: ReadFile) -> tuple[str, ...]:
    """Return the first of the words that describe each WordNet id."""
    words = {}
    for row in _read_table("words.txt", read):
        if len(row) == 2:
            wordnet_id, description = row
            words[wordnet_id] = description.split(",")[0]
    return tuple(words.get(wordnet_id, wordnet_id) for wordnet_id in ids)
