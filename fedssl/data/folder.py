"""Image files in folders: by client, by class, by client and then class, or in no order at all."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from pydantic import Field, field_validator
from torch import Tensor

from fedssl.data.cache import cached, default_place
from fedssl.data.decoders import decode_all
from fedssl.data.fetch import find_path, missing
from fedssl.data.images import SOURCES, Dataset, Images, Source
from fedssl.data.progress import Say, unnamed
from fedssl.data.walk import index_files, shown, subfolders
from fedssl.errors import DataError
from fedssl.pixels import Rows
from fedssl.settings import suggest

_LEVELS = {"clients": 1, "classes": 1, "clients-classes": 2, "flat": 0}
_NO_FOLDER = ("auto", "off")


@SOURCES.register("folder")
class Folder(Source):
    """`path` of a folder of images (see `find_path`); every file in it counts, except hidden ones.

    Where the folder holds no folders but `train` and `test` (or `val`), these are the two sets. Test images,
    also those at the path `test`, lie in one folder per class. How files become pixels: see decode.py.
    """

    path: str
    size: int = Field(ge=1, le=4096)
    layout: Literal["clients", "classes", "clients-classes", "flat"]
    channels: Literal[1, 3] = 3
    bad_share: float = Field(default=0.01, ge=0, le=1)  # of a client's files (or of all): more is an error
    test: str | None = None
    cache: str = Field("auto", min_length=1)  # where decoded images are kept; auto: the user's cache, off: nowhere

    @field_validator("cache")
    @classmethod
    def _no_slip(cls, value: str) -> str:
        if value not in _NO_FOLDER and (hint := suggest(value, _NO_FOLDER)):
            raise ValueError(f'a folder, "auto" or "off"{hint}')
        return value

    def read(self, root: Path, say: Say) -> Dataset:
        top = _folder(self.path, root)
        train, test = _halves(top)
        if self.test is not None:
            test = _folder(self.test, root)
            places = train.resolve(), test.resolve()
            if places[0].is_relative_to(places[1]) or places[1].is_relative_to(places[0]):
                raise DataError(
                    f"one of {train} and {test} lies in the other: test images would also be training images"
                )
        read = self._part(train, top, self.layout, say)
        if test is None:
            return Dataset(read.images(read.classes), None, read.owners(), tuple(read.skipped))
        seen = self._part(test, top if test.is_relative_to(top) else test, "classes", say)
        if read.classes and not set(seen.classes) <= set(read.classes):
            extra = min(set(seen.classes) - set(read.classes))
            raise DataError(f'class "{extra}" has test images in {test} but no training images in {train}')
        images, tests = read.images(read.classes), seen.images(read.classes or seen.classes)
        return Dataset(images, tests, read.owners(), (*read.skipped, *seen.skipped))

    def _part(self, folder: Path, top: Path, layout: str, say: Say) -> _Part:
        by_client = layout.startswith("clients")
        groups = subfolders(folder) if by_client else []
        names, skipped = index_files(folder, top, _LEVELS[layout], by_client, say)
        _refuse_alike(groups, "client", folder)
        if layout.endswith("classes"):
            _refuse_alike({name.split(os.sep)[_LEVELS[layout] - 1] for name in names}, "class", folder)
        pixels, bad = self._decoded(folder, names, say)
        lines = skipped + [(reason, names[place]) for place, reason in bad.items()]
        _refuse_too_many_bad(names, bad, bool(groups), self.bad_share, folder)
        good = [name for place, name in enumerate(names) if place not in bad]
        if not good:
            raise DataError(f"{folder} holds no image that can be read in layout {layout}")
        within = folder.relative_to(top)
        return _Part(pixels, good, layout, groups, [f"{why}: {shown(str(within / name))}" for why, name in lines])

    def _decoded(self, folder: Path, names: list[str], say: Say) -> tuple[Rows, dict[int, str]]:
        if self.cache == "off":
            pixels, bad = decode_all(names, lambda name: folder / name, self.size, self.channels, say)
            return Rows(pixels), bad
        place = default_place() if self.cache == "auto" else Path(self.cache)
        return cached(folder, names, self.size, self.channels, place, say)


class _Part(NamedTuple):
    """Everything read from one folder; names are relative to it."""

    pixels: Rows
    names: list[str]
    layout: str
    clients: list[str]
    skipped: list[str]

    @property
    def classes(self) -> tuple[str, ...]:
        if not self.layout.endswith("classes"):
            return ()
        return tuple(sorted({_class_of(name, _LEVELS[self.layout]) for name in self.names}))

    def images(self, classes: tuple[str, ...]) -> Images:
        if not self.layout.endswith("classes"):
            return Images(self.pixels)
        # Bound to the names alone: labels must not keep the pixels alive.
        return Images(self.pixels, partial(_labels, self.names, _LEVELS[self.layout], classes), classes)

    def owners(self) -> dict[str, Tensor] | None:
        if not self.layout.startswith("clients"):
            return None
        owned: dict[str, list[int]] = {client: [] for client in self.clients}  # a client may own nothing
        for place, name in enumerate(self.names):
            owned[name.split(os.sep)[0]].append(place)
        return {shown(client): torch.tensor(places, dtype=torch.int64) for client, places in owned.items()}


def _class_of(name: str, level: int) -> str:
    return shown(name.split(os.sep)[level - 1])


def _labels(names: list[str], level: int, classes: tuple[str, ...]) -> Tensor:
    number = {name: k for k, name in enumerate(classes)}
    return torch.tensor([number[_class_of(name, level)] for name in names])


def _folder(path: str, root: Path) -> Path:
    found = find_path(path, root)
    if found.is_dir():
        return found
    raise DataError(f"{found} is no folder" if found.exists() else f"there is no folder {missing(path, root)}")


def _halves(top: Path) -> tuple[Path, Path | None]:
    """The folders of training and of test images."""
    names = set(subfolders(top))
    if "train" not in names or not names <= {"train", "test", "val"}:
        return top, None
    return top / "train", next((top / name for name in ("test", "val") if name in names), None)


def _refuse_alike(folders: Iterable[str], what: str, folder: Path) -> None:
    """Folders whose names differ, but not once their odd bytes are escaped, would be taken for one."""
    name, count = max(Counter(map(shown, folders)).items(), key=lambda item: item[1], default=("", 0))
    if count > 1:
        raise DataError(
            f'{count} folders in {folder} would be {what} "{name}", as their odd bytes are shown: rename one'
        )


def _refuse_too_many_bad(names: list[str], bad: dict[int, str], by_client: bool, limit: float, folder: Path) -> None:
    """A client with too many bad files fails; without clients, the whole folder does."""

    def whose(name: str) -> str:
        return f'client "{shown(name.split(os.sep)[0])}"' if by_client else str(folder)

    files = Counter(whose(name) for name in names)
    broken = Counter(whose(names[place]) for place in bad)
    for who, count in broken.items():
        if count > limit * files[who] + 1e-9:  # 0.29 × 100 is a little less than 29
            example = next((why, names[place]) for place, why in bad.items() if whose(names[place]) == who)
            raise DataError(
                f"{who}: {count} of {files[who]} files cannot be read as images, more than "
                f"bad_share = {limit:g} allows; the first: {example[0]}{unnamed()}",
                f"the first is {shown(example[1])}",
            )
