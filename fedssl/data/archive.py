"""Files inside an archive, or in the folder it was extracted to, read the same way and never extracted."""

from __future__ import annotations

import os
import tarfile
import zipfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from fedssl.errors import DataError

_MOST_BYTES = 100_000_000  # of a file that is read whole: an image, or a list of names


class Member(NamedTuple):
    name: str  # without folders
    size: int  # bytes
    stream: IO[bytes]  # open until the next member is asked for


@contextmanager
def intact(where: Path) -> Iterator[None]:
    """Turn what damaged archives raise, wherever their reading got to, into one sentence."""
    try:
        yield
    except (DataError, MemoryError):
        raise
    except Exception as failure:  # damaged archives make tarfile, zipfile and zlib raise errors of many types
        raise DataError(f"{where} is damaged or cannot be read ({failure})") from None


def members(where: Path, wanted: Collection[str]) -> Iterator[Member]:
    """The wanted members of a tar archive (in its own order) or the wanted files of a folder."""
    missing = set(wanted)
    walk = _from_folder if where.is_dir() else _from_tar
    for member in walk(where, missing):
        missing.remove(member.name)
        yield member
        if not missing:  # spares reading the rest of a compressed archive
            return
    raise DataError(f"{where} lacks {', '.join(sorted(missing))}")


def _from_folder(where: Path, missing: set[str]) -> Iterator[Member]:
    for name in sorted(missing):
        path = where / name
        if path.is_file():
            with path.open("rb") as stream:
                yield Member(name, path.stat().st_size, stream)


def _from_tar(where: Path, missing: set[str]) -> Iterator[Member]:
    with tarfile.open(where, "r|*") as archive:  # a stream: nothing is read twice
        for entry in archive:
            name = PurePosixPath(entry.name).name
            stream = archive.extractfile(entry) if name in missing and entry.isfile() else None
            if stream is not None:
                yield Member(name, entry.size, stream)


def _read_file(path: Path) -> bytes:
    if path.stat().st_size > _MOST_BYTES:
        raise DataError(f"{path} has more than {_MOST_BYTES:,} bytes")
    return path.read_bytes()


def listing(where: Path, top: str) -> tuple[list[str], Callable[[str], bytes]]:
    """Sorted names below `top` in a zip archive, or below the folder itself, and how to read one of them.

    Reading is safe from several threads.
    """
    if where.is_dir():
        names = [
            (Path(folder) / name).relative_to(where).as_posix() for folder, _, files in os.walk(where) for name in files
        ]
        return sorted(names), lambda name: _read_file(where / name)
    with intact(where):
        archive = zipfile.ZipFile(where)
    prefix = f"{top}/"
    names = [name.removeprefix(prefix) for name in archive.namelist() if name.startswith(prefix)]

    def read(name: str) -> bytes:
        with intact(where):
            size = archive.getinfo(prefix + name).file_size
            if size > _MOST_BYTES:
                raise DataError(f"{name} in {where} claims {size:,} bytes, more than {_MOST_BYTES:,}")
            return archive.read(prefix + name)

    return sorted(name for name in names if name and not name.endswith("/")), read
