"""Remove files below a folder without ever following a symbolic link out of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Listing(NamedTuple):
    """The content of a folder, as paths relative to it."""

    files: list[Path]
    links: list[Path]  # symbolic links, which are not followed


def list_files(root: Path, folder: Path = Path()) -> Listing:
    """Return all files and symbolic links below `folder`, which is relative to `root`."""
    listing = Listing([], [])
    start = root / folder
    if start.is_symlink():
        listing.links.append(folder)
    elif start.is_dir():
        for name in sorted(os.listdir(start)):
            _add(listing, root, folder / name)
    return listing


def _add(listing: Listing, root: Path, path: Path) -> None:
    mode = (root / path).lstat().st_mode
    if stat.S_ISLNK(mode):
        listing.links.append(path)
    elif stat.S_ISDIR(mode):
        inner = list_files(root, path)
        listing.files.extend(inner.files)
        listing.links.extend(inner.links)
    else:
        listing.files.append(path)


def remove_file(root: Path, path: Path) -> None:
    """Remove a file below `root`; raise OSError if its path leads through a symbolic link.

    The removal is on the disk when the call returns. A link in the place of the file itself is
    removed, not the file that it points to.
    """
    with _opened(root, path.parent) as folder:
        os.unlink(path.name, dir_fd=folder)
        os.fsync(folder)


def remove_empty_folder(root: Path, path: Path) -> None:
    """Remove a folder below `root` if it exists and is empty."""
    with suppress(OSError), _opened(root, path.parent) as folder:
        os.rmdir(path.name, dir_fd=folder)


@contextmanager
def _opened(root: Path, path: Path) -> Iterator[int]:
    """Yield the descriptor of a folder below `root`, opened without following links."""
    descriptor = os.open(root, _FOLDER)
    try:
        for name in path.parts:
            inner = os.open(name, _FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)
