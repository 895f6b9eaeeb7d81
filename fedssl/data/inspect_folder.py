"""Find out how a folder of images is organised, without decoding the images."""

from __future__ import annotations

import os
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from fedssl.core.console import Notify
from fedssl.core.errors import DataError
from fedssl.data.folder_listing import list_image_files, subfolders

SAMPLED = 200  # files whose headers are read
GREY_MODES = ("1", "L", "LA", "I", "I;16", "F")
TEST_NAMES = ("test", "val")
LAYOUTS = ("clients", "classes", "clients-classes", "flat")


class FolderSummary(NamedTuple):
    """The layout of a folder of images, and what a sample of its files looks like."""

    layout: str  # as in [data]
    reason: str  # why this layout was chosen
    train: Path
    test: Path | None
    groups: dict[str, int]  # images by client or by class; empty for a flat folder
    classes: list[str]
    images: int
    side: int  # median of the shorter sides of the sample, in pixels
    smallest_side: int
    grey: bool  # True if all images of the sample are
    deep: bool  # True if an image of the sample has more than 8 bits per channel

    @property
    def by_client(self) -> bool:
        """True if the folders are clients."""
        return self.layout.startswith("clients")


def inspect_folder(folder: Path, notify: Notify, layout: str | None = None) -> FolderSummary:
    """Return a summary of a folder of images; raise DataError if it has none.

    The layout is detected if it is None.
    """
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}")
    train, test = _split(folder)
    names, _ = list_image_files(train, folder, 0, separate_subfolders=False, notify=notify)
    sample = _read_headers(train, names)
    if not sample:
        raise DataError(f"no file in {train} could be read as an image")
    test_classes = [] if test is None else subfolders(test)
    reason = "as asked for"
    if layout is None:
        layout, reason = detect_layout(names, test_classes)
    sides = [min(header.width, header.height) for header in sample]
    return FolderSummary(
        layout=layout,
        reason=reason,
        train=train,
        test=test,
        groups=_count_groups(names, layout),
        classes=_classes(names, layout) or test_classes,
        images=len(names),
        side=int(statistics.median(sides)),
        smallest_side=min(sides),
        grey=all(header.mode in GREY_MODES for header in sample),
        deep=any(header.mode in ("I", "I;16", "F") for header in sample),
    )


def _split(folder: Path) -> tuple[Path, Path | None]:
    """Return the folders of training and of test images, as `data.name = "folder"` reads them."""
    names = set(subfolders(folder))
    if "train" not in names or not names <= {"train", *TEST_NAMES}:
        return folder, None
    for name in TEST_NAMES:
        if name in names:
            return folder / "train", folder / name
    return folder / "train", None


def detect_layout(names: Sequence[str], test_classes: Sequence[str]) -> tuple[str, str]:
    """Return the layout of files by their names relative to the folder, and the reason for it."""
    by_first: dict[str, set[str]] = defaultdict(set)  # folder -> the folders in it
    for name in names:
        first, *rest = name.split(os.sep)
        if rest:
            by_first[first].update(rest[:1] if len(rest) > 1 else [])
    if not by_first:
        return "flat", "the images are in one folder"
    if test_classes and set(by_first) <= set(test_classes):
        return "classes", "the folders have the names of the test images' classes"
    inner = Counter(folder for folders in by_first.values() for folder in folders)
    repeated = sum(1 for count in inner.values() if count > 1)
    if repeated * 2 >= len(inner) > 0:
        return "clients-classes", "the same folders are in several folders"
    return "clients", "each folder has its own images"


def _count_groups(names: Sequence[str], layout: str) -> dict[str, int]:
    if layout == "flat":
        return {}
    return dict(sorted(Counter(name.split(os.sep)[0] for name in names if os.sep in name).items()))


def _classes(names: Sequence[str], layout: str) -> list[str]:
    """Return the class folders of a layout that has them."""
    if not layout.endswith("classes"):
        return []
    level = 1 if layout == "clients-classes" else 0
    folders = {
        parts[level] for parts in (name.split(os.sep) for name in names) if len(parts) > level + 1
    }
    return sorted(folders)


class _Header(NamedTuple):
    width: int
    height: int
    mode: str


def _read_headers(folder: Path, names: Sequence[str]) -> list[_Header]:
    """Return the headers of a sample of files, evenly spaced; unreadable files are left out."""
    step = max(1, len(names) // SAMPLED)
    headers = []
    for name in names[::step][:SAMPLED]:
        try:
            with Image.open(folder / name) as image:
                headers.append(_Header(*image.size, image.mode))
        except (OSError, ValueError, SyntaxError):
            continue
    return headers
