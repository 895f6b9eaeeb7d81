"""Read files from an archive, or from the folder it was extracted to; nothing is extracted."""

from __future__ import annotations

import os
import tarfile
import zipfile
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from fedssl.core.errors import DataError

_MAX_RECORDS = 1_000_000  # of a binary file; the largest official one has 100,000
_MAX_FILE_BYTES = 100_000_000  # of a file that is read whole: an image, or a list of names

ReadFile = Callable[[str], bytes]


class Member(NamedTuple):
    """One file of an archive or a folder."""

    name: str  # without folders
    size: int  # bytes
    stream: IO[bytes]  # open until the next member is requested


@contextmanager
def damage_as_data_error(archive: Path) -> Iterator[None]:
    """Convert any error that a damaged archive causes into a DataError of one sentence."""
    try:
        yield
    except (DataError, MemoryError):
        raise
    except Exception as error:  # tarfile, zipfile and zlib raise errors of many types
        raise DataError(f"{archive} is damaged or cannot be read ({error})") from None


def count_records(member: Member, record_bytes: int, archive: Path) -> int:
    """Return the number of records in a binary file; raise DataError if its size is wrong.

    Call this before memory is allocated for the records.
    """
    count, rest = divmod(member.size, record_bytes)
    if rest:
        raise DataError(
            f"{member.name} in {archive} is not a whole number of records of {record_bytes} bytes"
        )
    if count > _MAX_RECORDS:
        raise DataError(
            f"{member.name} in {archive} has {member.size:,} bytes, "
            "too many for a file of this data set"
        )
    return count


def iter_members(where: Path, names: Collection[str]) -> Generator[Member]:
    """Yield the named members of a tar archive, in its order, or the named files of a folder.

    Raise DataError if some of them are missing.
    """
    missing = set(names)
    walk = _walk_folder if where.is_dir() else _walk_tar
    for member in walk(where, missing):
        missing.remove(member.name)
        yield member
        if not missing:  # avoids reading the rest of a compressed archive
            return
    raise DataError(f"{where} lacks {', '.join(sorted(missing))}")


def _walk_folder(folder: Path, missing: set[str]) -> Iterator[Member]:
    for name in sorted(missing):
        path = folder / name
        if path.is_file():
            with path.open("rb") as stream:
                yield Member(name, path.stat().st_size, stream)


def _walk_tar(path: Path, missing: set[str]) -> Iterator[Member]:
    with tarfile.open(path, "r|*") as archive:  # a stream: nothing is read twice
        for entry in archive:
            name = PurePosixPath(entry.name).name
            if name not in missing or not entry.isfile():
                continue
            stream = archive.extractfile(entry)
            if stream is not None:
                yield Member(name, entry.size, stream)


def list_files(where: Path, top: str) -> tuple[list[str], ReadFile]:
    """Return the sorted names of all files and a function that reads one of them.

    The names are those below `top` in a zip archive, or below the folder itself. The function may
    be called from several threads.
    """
    if where.is_dir():
        return _list_folder(where)
    return _list_zip(where, f"{top}/")


def _list_folder(top: Path) -> tuple[list[str], ReadFile]:
    names: list[str] = []
    for folder, _, file_names in os.walk(top):
        relative = Path(folder).relative_to(top)
        for name in file_names:
            names.append((relative / name).as_posix())

    def read(name: str) -> bytes:
        path = top / name
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise DataError(f"{path} has more than {_MAX_FILE_BYTES:,} bytes")
        return path.read_bytes()

    return sorted(names), read


def _list_zip(path: Path, prefix: str) -> tuple[list[str], ReadFile]:
    with damage_as_data_error(path):
        archive = zipfile.ZipFile(path)
    names = []
    for entry in archive.namelist():
        is_folder = entry.endswith("/")
        if entry.startswith(prefix) and not is_folder:
            names.append(entry.removeprefix(prefix))

    def read(name: str) -> bytes:
        with damage_as_data_error(path):
            size = archive.getinfo(prefix + name).file_size
            if size > _MAX_FILE_BYTES:
                raise DataError(
                    f"{name} in {path} claims {size:,} bytes, more than {_MAX_FILE_BYTES:,}"
                )
            return archive.read(prefix + name)

    return sorted(names), read
