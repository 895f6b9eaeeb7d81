"""Read the images of a folder in batches, with bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from fedssl.core.console import Notify, meter
from fedssl.core.errors import DataError
from fedssl.core.missing_paths import no_folder
from fedssl.data.bad_files import write_list
from fedssl.data.cache import default_cache_dir
from fedssl.data.folder_listing import list_image_files, printable
from fedssl.data.skipped_files import MAX_LISTED, report_skipped
from fedssl.runs.input_images import Preprocessing

BATCH_FILES = 256  # files that are decoded at once


class ImageFolder:
    """The images in a folder and its subfolders, in the order of their names.

    Hidden files, links out of the folder and files of other types are left out. After an iteration,
    `skipped` also has the files that could not be read, each as "reason: name".
    """

    def __init__(self, folder: str | Path, notify: Notify) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise DataError(no_folder(self.folder))
        self._notify = notify
        names, left_out = list_image_files(
            self.folder, self.folder, 0, separate_subfolders=False, notify=notify
        )
        self.names: list[str] = names
        self.skipped: list[str] = []
        for reason, name in left_out:
            self.skipped.append(f"{reason}: {printable(name)}")
        if not names:
            raise DataError(f"{self.folder} contains no image files")

    def batches(self, preprocess: Preprocessing) -> Iterator[ImageBatch]:
        """Yield the readable images as uint8 pixels, with a progress bar; then report the others.

        Raise DataError if no image can be read.
        """
        preprocess.check_square()
        readable = 0
        with meter("reading images", len(self.names), self._notify) as advance:
            for start in range(0, len(self.names), BATCH_FILES):
                names = self.names[start : start + BATCH_FILES]
                pixels, bad = preprocess.decode(names, lambda name: self.folder / name)
                for position, reason in bad.items():
                    self.skipped.append(f"{reason}: {printable(names[position])}")
                kept = [name for position, name in enumerate(names) if position not in bad]
                readable += len(kept)
                if kept:
                    yield ImageBatch(kept, pixels)
                advance(len(names))
        report_skipped(self.skipped, self._notify, partial(_list_all, self.folder))
        if not readable:
            raise DataError(f"{self.folder} contains no readable image")


class ImageBatch(NamedTuple):
    """Some images: their names below the folder, and their uint8 pixels (n, C, H, W)."""

    names: list[str]
    pixels: Tensor


def _list_all(folder: Path, lines: Sequence[str]) -> Path | None:
    """Write the files left out to a private file if they are many; return its path."""
    if len(lines) <= MAX_LISTED:
        return None
    return write_list(str(folder.resolve()), lines, default_cache_dir())
