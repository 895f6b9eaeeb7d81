"""Detect and repair damage in the files next to the checkpoints.

    integrity.jsonl     two identical records, each with its SHA-256: one damaged byte leaves the
                        other intact

A record holds a copy of each small file that cannot be computed again (experiment.toml), and the
SHA-256 of each file that can (results.json, backbone.safetensors). A directory without this file
was written by an earlier version: its files are used unverified until `adopt` records their hashes.
All writers hold the lock of the directory.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedssl.core.console import Notify
from fedssl.core.errors import RunError
from fedssl.core.files.atomic import write_atomic
from fedssl.core.files.sealed import seal, unseal

NAME = "integrity.jsonl"
OUTPUTS = ("results.json", "classes.json", "outcomes.safetensors", "picture.png")


class Record(NamedTuple):
    """Copies and hashes of a directory's files, by name."""

    copies: Mapping[str, str]
    hashes: Mapping[str, str]


def read(folder: Path) -> Record | None:
    """Return the record of a directory; None if it was written by an earlier version."""
    data = _read_bytes(folder / NAME)
    if data is None:
        return None
    for line in data.split(b"\n"):
        with contextlib.suppress(ValueError):
            body = unseal(line)
            return Record(body["copies"], body["hashes"])
    raise RunError(
        f"{folder / NAME} is damaged in both of its records; nothing was changed. Remove it to "
        "continue without verifying the files next to the checkpoints"
    )


def repair(folder: Path, notify: Notify) -> None:
    """Rewrite the record if one of its two copies is damaged."""
    record = read(folder)
    if record is not None and (folder / NAME).read_bytes() != _serialize(record):
        notify(f"{folder / NAME} was damaged; it was repaired from its second record")
        _write(folder, record)


def check(folder: Path, notify: Notify) -> None:
    """Report files that do not match their record. Change nothing: a run may be in progress."""
    record = read(folder)
    if record is None:
        return
    names = damaged(folder)
    if (folder / NAME).read_bytes() != _serialize(record):
        names.append(NAME)
    for name in names:
        notify(
            f"{folder / name} is damaged: it does not match its recorded hash. "
            "`fedssl run` repairs it"
        )


def damaged(folder: Path) -> list[str]:
    """Return the files that exist and do not match their recorded hash."""
    record = read(folder)
    if record is None:
        return []
    return [name for name in record.hashes if is_damaged(folder, name)]


def is_damaged(folder: Path, name: str) -> bool:
    """True if a file exists and does not match its recorded hash."""
    record = read(folder)
    data = _read_bytes(folder / name)
    if record is None or data is None or name not in record.hashes:
        return False
    return _sha256(data) != record.hashes[name]


def verified(folder: Path, name: str) -> bool:
    """True if a file exists and matches its recorded hash, or if an earlier version, which recorded
    no hashes, wrote the directory."""
    data = _read_bytes(folder / name)
    record = read(folder)
    if data is None or record is None:
        return data is not None
    return record.hashes.get(name) == _sha256(data)


def copy_of(folder: Path, name: str) -> str | None:
    """Return the recorded copy of a file; None if it has no copy."""
    record = read(folder)
    return None if record is None else record.copies.get(name)


def read_text(folder: Path, name: str, notify: Notify) -> str | None:
    """Return a file's text, or its recorded copy if the two differ; None if neither exists."""
    data = _read_bytes(folder / name)
    copy = copy_of(folder, name)
    if copy is None:
        return None if data is None else data.decode("utf-8", "replace")
    if data != copy.encode():
        problem = "missing" if data is None else "damaged"
        notify(f"{folder / name} is {problem}; its copy in {NAME} is used")
    return copy


def read_json(folder: Path, name: str) -> dict[str, Any] | None:
    """Return the JSON table in a file; None if the file does not exist.

    Raise ValueError if it is damaged.
    """
    data = _read_bytes(folder / name)
    if data is None:
        return None
    table = json.loads(data)
    if not isinstance(table, dict) or is_damaged(folder, name):
        raise ValueError(f"{folder / name} is damaged")
    return table


def write_copied(folder: Path, name: str, text: str) -> None:
    """Write a small file and record a copy of it.

    The old copy is dropped first: after a kill in between the file is unverified, not rejected.
    """
    copy = copy_of(folder, name)
    if _read_bytes(folder / name) != text.encode():
        if copy != text:
            _drop_copy(folder, name)
        write_atomic(folder / name, text.encode())
    if copy != text:
        record = read(folder) or Record({}, {})
        _write(folder, record._replace(copies={**record.copies, name: text}))


def remove_copied(folder: Path, name: str) -> None:
    """Remove a small file and its recorded copy."""
    _drop_copy(folder, name)
    (folder / name).unlink(missing_ok=True)


def _drop_copy(folder: Path, name: str) -> None:
    """Remove the copy of a file from the record."""
    record = read(folder)
    if record is not None and name in record.copies:
        copies = {key: value for key, value in record.copies.items() if key != name}
        _write(folder, record._replace(copies=copies))


def record_hashes(folder: Path, names: Iterable[str]) -> None:
    """Record the SHA-256 of files as they are now; drop the hashes of those that do not exist."""
    record = read(folder) or Record({}, {})
    hashes = dict(record.hashes)
    for name in names:
        data = _read_bytes(folder / name)
        if data is None:
            hashes.pop(name, None)
        else:
            hashes[name] = _sha256(data)
    if hashes != record.hashes or not (folder / NAME).is_file():
        _write(folder, record._replace(hashes=hashes))


def forget_hashes(folder: Path, names: Iterable[str]) -> None:
    """Drop the hashes of files that are about to be replaced, so that a reader does not report them
    as damaged."""
    record = read(folder)
    if record is not None:
        hashes = dict(record.hashes)
        for name in names:
            hashes.pop(name, None)
        _write(folder, record._replace(hashes=hashes))


def adopt(folder: Path, notify: Notify) -> None:
    """Record the current hashes of a directory that an earlier version wrote."""
    if (folder / NAME).is_file():
        return
    notify(
        f"{folder} was written by an earlier version without hashes: "
        "the files next to checkpoints are not verified"
    )
    record_hashes(folder, outputs(folder))


def outputs(folder: Path) -> list[str]:
    """Return the names of the files that a finished run has exported or measured."""
    backbones = sorted(path.name for path in folder.glob("backbone*.safetensors"))
    return [name for name in OUTPUTS if (folder / name).is_file()] + backbones


def _write(folder: Path, record: Record) -> None:
    write_atomic(folder / NAME, _serialize(record))


def _serialize(record: Record) -> bytes:
    body: dict[str, Any] = {"copies": dict(record.copies), "hashes": dict(record.hashes)}
    line = seal(body)
    return line + b"\n\n" + line + b"\n"  # an empty line: one damaged byte cannot join the two


def _read_bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
