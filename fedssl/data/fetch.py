"""Official files: found on disk, or downloaded once, checked, and only then given their name."""

from __future__ import annotations

import hashlib
import http.client
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import IO, NamedTuple

from fedssl.data.progress import Say, meter
from fedssl.errors import DataError
from fedssl.extents import sync_folder

_BLOCK = 1 << 18
_TIMEOUT = 30.0  # seconds without a byte, not for the whole file


class Official(NamedTuple):
    """A file as its publisher gives it out."""

    name: str
    url: str
    digest: str  # "md5:…" or "sha256:…"


def find(root: Path, folder: str, names: Iterable[str], also: Iterable[Path] = ()) -> Path | None:
    """The first of `names` that exists in `root`, in `root/folder`, or in one of the places `also`."""
    places = (root, root / folder, *also)
    return next((place / name for name in names for place in places if (place / name).exists()), None)


def find_path(path: str, root: Path) -> Path:
    """A path a user wrote: from `root` if it is there, else from the working directory."""
    here = Path(path).expanduser()
    return root / here if (root / here).exists() or not here.exists() else here


def missing(path: str, root: Path) -> str:
    """A path, and all places where `find_path` looked for it in vain."""
    here = Path(path).expanduser()
    if here.is_absolute():
        return str(here)
    return f"{path} in the data directory (--data-dir) {root.absolute()} or in the working directory {Path.cwd()}"


def fetch(root: Path, folder: str, file: Official, say: Say, also: Iterable[Path] = ()) -> Path:
    """The file on disk, downloaded to `root/folder` if it is nowhere yet.

    Files found on disk are trusted: their users may have packed them anew, and the readers check their shape.
    """
    found = find(root, folder, [file.name], also)
    return found if found is not None else download(file, root / folder / file.name, say)


def download(file: Official, target: Path, say: Say) -> Path:
    """Download to a temporary name beside `target`; sync and rename once the checksum is right."""
    temporary: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{file.name}.", delete=False) as out:
            temporary = Path(out.name)
            found = _copy(file, out, say)
            out.flush()
            os.fsync(out.fileno())
        if found != file.digest:
            raise DataError(
                f"{file.name} from {file.url} has checksum {found} instead of {file.digest} and was not kept"
            )
        temporary.chmod(0o644)  # temporary files are private; data is meant to be shared
        temporary.replace(target)
        sync_folder(target.parent)
    except (OSError, http.client.HTTPException, ValueError) as failure:
        raise DataError(
            f"{file.name} is missing and cannot be downloaded ({failure}): get it from {file.url} "
            f"and put it at {target}"
        ) from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return target


def _copy(file: Official, out: IO[bytes], say: Say) -> str:
    """Stream the file into `out`; the digest of what came, written like `Official.digest`."""
    kind = file.digest.partition(":")[0]
    # MD5 is what publishers give; it guards against damage here, not against an attacker.
    digest = hashlib.new(kind, usedforsecurity=False)
    if not file.url.startswith(("http://", "https://")):
        raise ValueError(f"{file.url} is not a web address")
    with _answer(file.url) as answer:
        length = answer.headers.get("Content-Length")
        total = int(length) if length else None
        with meter(f"downloading {file.url}", total, say, size=True) as advance:
            while block := answer.read(_BLOCK):
                out.write(block)
                digest.update(block)
                advance(len(block))
    return f"{kind}:{digest.hexdigest()}"


def _answer(url: str) -> http.client.HTTPResponse:
    try:
        answer: http.client.HTTPResponse = urllib.request.urlopen(url, timeout=_TIMEOUT)
    except urllib.error.HTTPError as failure:
        failure.close()  # it is an open connection, too
        raise
    return answer
