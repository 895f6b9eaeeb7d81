"""Find out how a folder of images is organised; of the images, at most a few are decoded."""

from __future__ import annotations

import os
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedssl.core.console import Notify
from fedssl.core.errors import DataError
from fedssl.core.missing_paths import no_folder
from fedssl.data.aspect_ratio import are_mostly_elongated, is_elongated, median_lost
from fedssl.data.edge_colour import have_light_edges
from fedssl.data.folder import LEVELS, TEST_NAMES, Fit, train_and_test
from fedssl.data.folder_listing import list_image_files, subfolders
from fedssl.data.small_images import Header, sample_headers, scaled_sides

GREY_MODES = ("1", "L", "LA", "I", "I;16", "F")
LAYOUTS = tuple(LEVELS)


class FolderSummary(NamedTuple):
    """The layout of a folder of images, and what a sample of its files looks like."""

    layout: str  # as in [data]
    reason: str  # why this layout was chosen
    test: Path | None
    groups: dict[str, int]  # images by client or by class; empty for a flat folder
    classes: list[str]
    images: int  # files that the layout includes
    outside: int  # files above the folders of the layout, which are left out
    side: int  # median over the sample of the side that is scaled to data.size, in pixels
    smallest_side: int
    grey: bool  # True if all images of the sample are
    transparent: int  # images of the sample whose pixels may be transparent
    sampled: int  # files whose headers were read
    unreadable: int  # of them, files that are not images
    bad_share: float  # the largest share of unreadable files in the sample of one client
    fit: Fit = "crop"  # as in [data]
    lost: float = 0.0  # median share of the area that cropping to squares loses
    elongated: int = 0  # images of the sample that would lose more than a third
    light_edges: bool = False  # True if most images have light edges; only for images to be padded

    @property
    def readable(self) -> int:
        """The number of images in the sample."""
        return self.sampled - self.unreadable

    @property
    def mostly_transparent(self) -> bool:
        """True if most images of the sample may have transparent pixels."""
        return 2 * self.transparent > self.readable

    @property
    def by_client(self) -> bool:
        """True if the folders are clients."""
        return self.layout.startswith("clients")

    @property
    def owned(self) -> list[int]:
        """The number of images of each client; all of them if folders are not clients."""
        if self.by_client:
            return list(self.groups.values())
        return [self.images]


def inspect_folder(folder: Path, notify: Notify, layout: str | None = None) -> FolderSummary:
    """Return a summary of a folder of images; raise DataError if it has none.

    The layout is detected if it is None.
    """
    _check_folder(folder)
    train, test = _split(folder, layout)
    all_names, _ = list_image_files(train, folder, 0, separate_subfolders=False, notify=notify)
    test_classes = _test_classes(test)
    reason = "--layout was set"
    if layout is None:
        layout, reason = detect_layout(all_names, test_classes)
    names = _in_layout(all_names, layout, train)
    headers = sample_headers(train, names)
    images = _readable(headers, train)
    pad = are_mostly_elongated(images)
    sides = scaled_sides(images, pad=pad)
    summary = FolderSummary(
        layout=layout,
        reason=reason,
        test=test,
        groups=_count_groups(names, layout),
        classes=_classes(names, layout) or test_classes,
        images=len(names),
        outside=len(all_names) - len(names),
        side=int(statistics.median(sides)),
        smallest_side=min(sides),
        grey=all(image.mode in GREY_MODES for image in images),
        transparent=sum(image.transparent for image in images),
        sampled=len(headers),
        unreadable=len(headers) - len(images),
        bad_share=_largest_bad_share(headers, layout),
        lost=median_lost(images),
        fit="pad" if pad else "crop",
        elongated=sum(map(is_elongated, images)),
        light_edges=pad and have_light_edges(train, list(headers)),
    )
    _check_enough_images(summary, train)
    return summary


def _check_enough_images(summary: FolderSummary, folder: Path) -> None:
    """Raise DataError if no client has the two images that training needs."""
    if max(summary.owned) > 1:
        return
    if summary.by_client:
        raise DataError(
            f"every client in {folder} has only one image, but training needs two images per "
            "client: add images"
        )
    raise DataError(f"{folder} has only one image, but training needs two: add images")


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise DataError(no_folder(folder))


def _readable(headers: Mapping[str, Header | None], folder: Path) -> list[Header]:
    """Return the headers of images; raise DataError if there are none."""
    images = list(filter(None, headers.values()))
    if not headers:
        raise DataError(f"{folder} contains no image files")
    if not images:
        raise DataError(f"no file in {folder} could be read as an image")
    return images


def _in_layout(names: Sequence[str], layout: str, folder: Path) -> list[str]:
    """Return the files that are in the folders of a layout; raise DataError if none is."""
    levels = LEVELS[layout]
    included = [name for name in names if name.count(os.sep) >= levels]
    if names and not included:
        raise DataError(
            f"{folder} has no images for the layout {layout}, whose images are {levels} folders "
            "deep or more: choose another --layout"
        )
    return included


def _split(folder: Path, layout: str | None) -> tuple[Path, Path | None]:
    """Return the folders of training and of test images, as `data.name = "folder"` reads them."""
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}")
    names = set(subfolders(folder))
    others = names - {"train", *TEST_NAMES}
    if "train" in names and others and layout is None:
        raise DataError(
            f'{folder} has "{min(others)}" next to "train", but train can only be next to test or '
            f"val: move the other folders away, inspect {folder / 'train'} alone, or choose "
            "--layout clients if all of them are clients"
        )
    return train_and_test(folder)


def _test_classes(test: Path | None) -> list[str]:
    """Return the classes of the test images; raise DataError if they are in no class folders."""
    if test is None:
        return []
    classes = subfolders(test)
    if not classes:
        raise DataError(
            f"test images must be in one folder per class, but {test} has no folders: sort the "
            f"images into folders, or move {test.name} away to train without test images"
        )
    return classes


def detect_layout(names: Sequence[str], test_classes: Sequence[str]) -> tuple[str, str]:
    """Return the layout of files by their names relative to the folder, and the reason for it."""
    by_first: dict[str, set[str]] = defaultdict(set)  # folder -> the folders in it
    outside = 0
    for name in names:
        first, *rest = name.split(os.sep)
        if rest:
            by_first[first].update(rest[:-1][:1])
        else:
            outside += 1
    if not by_first:
        return "flat", "the images are in one folder"
    if 2 * outside > len(names):
        return "flat", f"{outside:,} of {len(names):,} files are in no folder of their own"
    if test_classes and set(by_first) <= set(test_classes):
        return "classes", "the folders have the names of the test images' classes"
    inner = Counter(folder for folders in by_first.values() for folder in folders)
    repeated = [folder for folder, count in inner.items() if count > 1]
    if len(repeated) * 2 >= len(inner) > 0:
        shared = min(repeated)
        reason = f'{inner[shared]} of {len(by_first)} folders have a folder "{shared}"'
        return "clients-classes", reason
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


def _largest_bad_share(headers: Mapping[str, Header | None], layout: str) -> float:
    """Return the largest share of unreadable files among those of one client, or of all."""
    unreadable: dict[str, list[float]] = defaultdict(list)
    for name, header in headers.items():
        owner = ""
        if layout.startswith("clients"):
            owner = name.split(os.sep)[0]
        unreadable[owner].append(float(header is None))
    return max(map(statistics.mean, unreadable.values()))
