"""Write a file completely or not at all."""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from fedssl.core.errors import ConfigError


def check_writable(folder: Path, option: str) -> None:
    """Raise ConfigError if a folder, which need not exist yet, cannot be written to.

    Call this before spending hours on results that belong there. It leaves no file behind. `option`
    is the flag that chooses another folder.
    """
    candidates = (folder, *folder.absolute().parents)
    existing = next(path for path in candidates if os.path.exists(path))
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as problem:
        raise ConfigError(
            f"{folder} cannot be written to ({problem.strerror}); choose another with {option}"
        ) from None


def check_replaceable(file: Path, option: str = "--out") -> None:
    """Raise ConfigError if a file cannot be written or replaced. It leaves no file behind.

    Call this before computing what the file will contain. `option` is the flag that chooses another
    file.
    """
    try:
        with tempfile.TemporaryFile(dir=file.parent):
            pass
    except OSError as problem:
        raise ConfigError(
            f"{file} cannot be written ({problem.strerror}); choose another with {option}"
        ) from None


def write_atomic(path: Path, data: bytes) -> str:
    """Write a file completely or not at all; return the SHA-256."""
    with replaced_file(path) as file:
        file.write(data)
    return hashlib.sha256(data).hexdigest()


@contextmanager
def replaced_file(path: Path, mode: int = 0o666, durable: bool = True) -> Iterator[BinaryIO]:
    """Yield a temporary file, which is synced and renamed to `path` if the block succeeds.

    Without `durable` nothing is synced: after a power cut the file may be damaged.

    Readers never see half a file, and a process that has mapped the replaced file keeps its bytes.
    The temporary name is unique to this call, so that several processes may write the same file at
    once: the last rename wins. It is a hidden name, since a kill leaves the file behind.
    """
    temporary = path.with_name(f".{secrets.token_hex(4)}.{path.name}.tmp")
    try:
        temporary.touch(mode, exist_ok=False)
        with temporary.open("wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as problem:
        temporary.unlink(missing_ok=True)
        if isinstance(problem, OSError) and problem.filename == str(temporary):
            problem.filename = str(path)  # users do not know the temporary one
        raise
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, renamed ones too; do nothing on systems that cannot open
    folders."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
