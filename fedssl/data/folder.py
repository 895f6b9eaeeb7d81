"""Image files in folders: by client, by class, by client and then class, or in no order."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field, field_validator
from torch import Tensor

from fedssl.core.console import Notify
from fedssl.core.errors import DataError
from fedssl.core.similar_paths import suggest_path
from fedssl.core.suggestions import suggest
from fedssl.data.aspect_ratio import cropping_warning
from fedssl.data.bad_files import check_bad_share, write_list
from fedssl.data.cache import decode_cached, default_cache_dir
from fedssl.data.decode_parallel import decode_all
from fedssl.data.download import find_path, searched_places
from fedssl.data.folder_listing import list_image_files, printable, subfolders
from fedssl.data.image_pool import PixelRows
from fedssl.data.images import SOURCES, Dataset, Images, Source
from fedssl.data.one_colour import one_colour_warning
from fedssl.data.skipped_files import MAX_LISTED
from fedssl.data.small_images import small_images_warning

LEVELS = {"clients": 1, "classes": 1, "clients-classes": 2, "flat": 0}  # folders above a file
IN_LAYOUT = {
    "clients": " in one folder for each client",
    "classes": " in one folder for each class",
    "clients-classes": " in one folder for each client, with one folder for each class",
    "flat": "",
}
TEST_NAMES = ("test", "val")
Background = Literal["black", "white"]
BACKGROUNDS: dict[Background, int] = {"black": 0, "white": 255}
Fit = Literal["crop", "pad"]
_CACHE_WORDS = ("auto", "off")

_NonEmpty = Annotated[str, Field(min_length=1)]


@SOURCES.register("folder")
class Folder(Source):
    """`path` of a folder of images (see `find_path`).

    Every file in it counts, except hidden ones and those that plainly are no images by their names.

    If the folder holds no folders but `train` and `test` (or `val`), these are the two sets. Test
    images, also those at the path `test`, are in one folder per class. decode.py describes how
    files become pixels.
    """

    path: str
    size: int = Field(ge=1, le=4096)
    layout: Literal["clients", "classes", "clients-classes", "flat"]
    channels: Literal[1, 3] = 3
    background: Background = "black"  # under transparent pixels, and around padded images
    fit: Fit = "crop"  # to a square: keep the centred one, or all and fill it with the background
    bad_share: float = Field(default=0.01, ge=0, le=1)  # of a client's files (or of all)
    test: _NonEmpty | None = None
    cache: _NonEmpty = "auto"  # folder for decoded images; auto: the user's cache, off: nowhere

    @field_validator("cache")
    @classmethod
    def _reject_misspelling(cls, value: str) -> str:
        if value not in _CACHE_WORDS:
            suggestion = suggest(value, _CACHE_WORDS)
            if suggestion:
                raise ValueError(f'a folder, "auto" or "off"{suggestion}')
        return value

    def read(self, root: Path, notify: Notify) -> Dataset:
        top = _find_folder(self.path, root)
        train_folder, test_folder = train_and_test(top)
        if self.test is not None:
            test_folder = _find_folder(self.test, root)
            _check_disjoint(train_folder, test_folder)
        train = self._read_part(train_folder, top, self.layout, notify)
        if self.fit == "crop":  # of training images only: once is enough
            _print_if_any(notify, cropping_warning(train_folder, train.names))
        if test_folder is None:
            images = train.images(train.classes)
            return Dataset(images, None, train.owners(), skipped=tuple(train.skipped))
        test_top = top if test_folder.is_relative_to(top) else test_folder
        test = self._read_part(test_folder, test_top, "classes", notify)
        unknown = set(test.classes) - set(train.classes)
        if train.classes and unknown:
            raise DataError(
                f'class "{min(unknown)}" has test images in {test_folder} '
                f"but no training images in {train_folder}"
            )
        return Dataset(
            train.images(train.classes),
            test.images(train.classes or test.classes),
            train.owners(),
            skipped=(*train.skipped, *test.skipped),
        )

    def _read_part(self, folder: Path, top: Path, layout: str, notify: Notify) -> _Part:
        by_client = layout.startswith("clients")
        clients = subfolders(folder) if by_client else []
        names, skipped = list_image_files(
            folder, top, LEVELS[layout], separate_subfolders=by_client, notify=notify
        )
        _check_distinct(clients, "client", folder)
        if layout.endswith("classes"):
            level = LEVELS[layout]
            _check_distinct({name.split(os.sep)[level - 1] for name in names}, "class", folder)
        pixels, bad = self._decode(folder, names, notify)
        if clients:
            owners = list(map(_client_of, names))
        else:
            owners = [str(folder)] * len(names)
        check_bad_share(folder, names, owners, bad, limit=self.bad_share, list_dir=self._cache_dir)
        readable = []
        for position, name in enumerate(names):
            if position in bad:
                skipped.append((bad[position], name))
            else:
                readable.append(name)
        if not readable:
            raise DataError(f"{folder} holds no image that can be read{IN_LAYOUT[layout]}")
        small = small_images_warning(folder, readable, self.size, pad=self.fit == "pad")
        _print_if_any(notify, small)
        _print_if_any(notify, one_colour_warning(folder, readable, pixels, self.background))
        below = folder.relative_to(top)
        lines = [f"{reason}: {printable(str(below / name))}" for reason, name in skipped]
        return _Part(pixels, readable, layout, clients=clients, skipped=lines)

    def list_skipped(self, lines: Sequence[str]) -> Path | None:
        if len(lines) <= MAX_LISTED:
            return None
        return write_list(self.path, lines, self._cache_dir)

    def _decode(
        self, folder: Path, names: list[str], notify: Notify
    ) -> tuple[PixelRows, dict[int, str]]:
        cache_dir = self._cache_dir
        background = BACKGROUNDS[self.background]
        pad = self.fit == "pad"
        if cache_dir is None:
            pixels, bad = decode_all(
                names,
                lambda name: folder / name,
                self.size,
                channels=self.channels,
                notify=notify,
                background=background,
                pad=pad,
            )
            return PixelRows(pixels), bad
        return decode_cached(
            folder,
            names,
            self.size,
            channels=self.channels,
            background=background,
            pad=pad,
            cache_dir=cache_dir,
            notify=notify,
        )

    @property
    def _cache_dir(self) -> Path | None:
        """The folder for decoded images; None if they are not kept."""
        if self.cache == "off":
            return None
        if self.cache == "auto":
            return default_cache_dir()
        return Path(self.cache).expanduser()


def background_of(source: Source) -> Background:
    """Return the colour under transparent pixels of files, as `source` decodes them."""
    return source.background if isinstance(source, Folder) else "black"


def fit_of(source: Source) -> Fit:
    """Return how files become squares, as `source` decodes them."""
    return source.fit if isinstance(source, Folder) else "crop"


class _Part(NamedTuple):
    """The images of one folder; names are relative to it."""

    pixels: PixelRows
    names: list[str]
    layout: str
    clients: list[str]
    skipped: list[str]

    @property
    def classes(self) -> tuple[str, ...]:
        if not self.layout.endswith("classes"):
            return ()
        return tuple(sorted({_class_of(name, LEVELS[self.layout]) for name in self.names}))

    def images(self, classes: tuple[str, ...]) -> Images:
        if not self.layout.endswith("classes"):
            return Images(self.pixels)
        # Bound to the names only: the loader must not keep the pixels alive.
        load_labels = partial(_labels, self.names, LEVELS[self.layout], classes)
        return Images(self.pixels, load_labels, classes)

    def owners(self) -> dict[str, Tensor] | None:
        if not self.layout.startswith("clients"):
            return None
        positions: dict[str, list[int]] = defaultdict(list)
        for position, name in enumerate(self.names):
            positions[name.split(os.sep)[0]].append(position)
        owners = {}
        for client in self.clients:  # a client may own nothing
            owners[printable(client)] = torch.tensor(positions[client], dtype=torch.int64)
        return owners


def _print_if_any(notify: Notify, warning: str | None) -> None:
    if warning is not None:
        notify(warning)


def _class_of(name: str, level: int) -> str:
    return printable(name.split(os.sep)[level - 1])


def _client_of(name: str) -> str:
    return f'client "{printable(name.split(os.sep)[0])}"'


def _labels(names: list[str], level: int, classes: tuple[str, ...]) -> Tensor:
    numbers = {name: k for k, name in enumerate(classes)}
    return torch.tensor([numbers[_class_of(name, level)] for name in names])


def _find_folder(path: str, root: Path) -> Path:
    folder = find_path(path, root)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise DataError(f"{folder} is not a folder")
    suggestion = suggest_path(path, Path.is_dir, (root, Path()))
    raise DataError(f"there is no folder {searched_places(path, root)}{suggestion}")


def train_and_test(top: Path) -> tuple[Path, Path | None]:
    """Return the folders of training and of test images."""
    names = set(subfolders(top))
    if "train" not in names or not names <= {"train", *TEST_NAMES}:
        return top, None
    for name in TEST_NAMES:
        if name in names:
            return top / "train", top / name
    return top / "train", None


def _check_disjoint(train: Path, test: Path) -> None:
    real_train = train.resolve()
    real_test = test.resolve()
    if real_train == real_test:
        raise DataError(
            f"training and test images are in the same folder, {train}: choose another folder of "
            "test images"
        )
    if real_train.is_relative_to(real_test) or real_test.is_relative_to(real_train):
        raise DataError(
            f"one of {train} and {test} is inside the other: "
            "test images would also be training images"
        )


def _check_distinct(folders: Iterable[str], kind: str, parent: Path) -> None:
    """Raise if names become equal once their unprintable bytes are escaped."""
    counts = Counter(map(printable, folders))
    for name, count in counts.most_common(1):
        if count > 1:
            raise DataError(
                f'{count} folders in {parent} would be {kind} "{name}" '
                "once their unprintable bytes are escaped: rename one"
            )
