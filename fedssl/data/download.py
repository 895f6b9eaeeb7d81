"""Find the official files of a data set on disk, or download and verify them once."""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import IO, NamedTuple

from fedssl.core.console import Notify, meter
from fedssl.core.errors import DataError
from fedssl.core.files.atomic import replaced_file

_BLOCK = 1 << 18  # bytes read at a time
_TIMEOUT = 30.0  # seconds without a byte, not for the whole file


_downloads_allowed: ContextVar[bool] = ContextVar("downloads allowed", default=True)


@contextmanager
def without_downloads() -> Iterator[None]:
    """Raise DataError for data sets that are not on disk, instead of downloading them."""
    token = _downloads_allowed.set(False)
    try:
        yield
    finally:
        _downloads_allowed.reset(token)


class OfficialFile(NamedTuple):
    """A file as its publisher distributes it."""

    name: str
    url: str
    digest: str  # "md5:…" or "sha256:…"


def find(root: Path, folder: str, names: Iterable[str], also: Iterable[Path] = ()) -> Path | None:
    """Return the first of `names` that exists in `root`, `root/folder` or a folder of `also`."""
    folders = (root, root / folder, *also)
    for name in names:
        for parent in folders:
            if (parent / name).exists():
                return parent / name
    return None


def find_path(path: str, root: Path) -> Path:
    """Resolve a user's path in `root` if it exists there, otherwise in the working directory."""
    local = Path(path).expanduser()
    if (root / local).exists() or not local.exists():
        return root / local
    return local


def searched_places(path: str, root: Path) -> str:
    """Return a path and all directories in which `find_path` looked for it, for a message."""
    local = Path(path).expanduser()
    if local.is_absolute():
        return str(local)
    return (
        f"{path} in the data directory (--data-dir) {root.absolute()} "
        f"or in the working directory {Path.cwd()}"
    )


def find_or_download(
    root: Path, folder: str, file: OfficialFile, notify: Notify, also: Iterable[Path] = ()
) -> Path:
    """Return the path of an official file, after downloading it to `root/folder` if necessary.

    Files on disk are not verified: users may have repacked them, and the readers check the shape.
    """
    path = find(root, folder, [file.name], also)
    if path is not None:
        return path
    return download(file, root / folder / file.name, notify)


def find_or_download_archive(
    root: Path, folder: str, archive: OfficialFile, *, extracted: str, member: str, notify: Notify
) -> Path:
    """Return the path of an archive, or of the folder that its files were extracted to.

    That folder is named `extracted`, or any other that contains the file `member`. If there is
    neither, download the archive to `root/folder`.
    """
    path = find(root, folder, [extracted, archive.name, member])
    if path is None:
        return download(archive, root / folder / archive.name, notify)
    return path.parent if path.name == member else path


def download(file: OfficialFile, target: Path, notify: Notify) -> Path:
    """Download a file to `target` if its checksum matches."""
    if not _downloads_allowed.get():
        raise DataError(
            f"{file.name} is missing, and nothing is downloaded here: get it from {file.url} and "
            f"put it at {target}"
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with replaced_file(target) as out:
            digest = _copy(file, out, notify)
            if digest != file.digest:
                raise DataError(
                    f"{file.name} from {file.url} has checksum {digest} instead of {file.digest} "
                    "and was not kept"
                )
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DataError(
            f"{file.name} is missing and cannot be downloaded ({error}): get it from {file.url} "
            f"and put it at {target}"
        ) from None
    return target


def _copy(file: OfficialFile, out: IO[bytes], notify: Notify) -> str:
    """Stream the file into `out` and return its digest in the format of `OfficialFile.digest`."""
    algorithm = file.digest.partition(":")[0]
    # Publishers provide MD5: it protects against damage here, not against an attacker.
    digest = hashlib.new(algorithm, usedforsecurity=False)
    if not file.url.startswith(("http://", "https://")):
        raise ValueError(f"{file.url} is not a web address")
    with _open_url(file.url) as response:
        length = response.headers.get("Content-Length")
        total = int(length) if length else None
        with meter(f"downloading {file.url}", total, notify, size=True) as advance:
            while block := response.read(_BLOCK):
                out.write(block)
                digest.update(block)
                advance(len(block))
    return f"{algorithm}:{digest.hexdigest()}"


def _open_url(url: str) -> http.client.HTTPResponse:
    try:
        # Addresses are fixed, and the content has a digest.
        response: http.client.HTTPResponse = urllib.request.urlopen(  # nosec B310
            url, timeout=_TIMEOUT
        )
    except urllib.error.HTTPError as error:
        error.close()  # the error holds an open connection
        raise
    return response
