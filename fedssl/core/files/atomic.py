"""Write a file completely or not at all."""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
from pathlib import Path

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


def write_atomic(path: Path, data: bytes) -> str:
    """Write to a temporary file, sync and rename it; return the SHA-256.

    Readers never see half a file. The temporary name is unique to this call, so that several
    processes may write the same file at once: the last rename wins. It is a hidden name, since a
    kill leaves the file behind.
    """
    temporary = path.with_name(f".{secrets.token_hex(4)}.{path.name}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
    return hashlib.sha256(data).hexdigest()


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, renamed ones too; do nothing on systems that cannot open
    folders."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
