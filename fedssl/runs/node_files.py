"""Recognise the memory of a client on a Flower node, and list the files that fedssl writes there.

Nothing else in such a folder is ever removed: the name of a file alone is not enough.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from fedssl.core.files import purge_note
from fedssl.core.files.lock import NAME as LOCK
from fedssl.core.files.removal import list_files
from fedssl.core.files.sealed import unseal

EXPERIMENT = "experiment.toml"
CLAIM = "claim.json"
CLAIM_KEYS = {"attempt", "round", "by"}
# What node_memory.py and secure_aggregation/storage.py of fedssl.flower write. Temporary files are
# those of write_atomic, and of an earlier version.
MEMORY = (CLAIM, "images.sha256", "secure-sum.json", "*.remembered", "*.remembered.tmp", ".*.tmp")
MODELS = "backbone*.safetensors"
FILES_OF_RUNS = ("rounds.jsonl", "rounds.jsonl.copy", "results.json", "backbone.safetensors")


def is_client_run(folder: Path) -> bool:
    """True if a folder has the claim of a client, or the note of its purge."""
    if (folder / EXPERIMENT).exists():
        return False
    return read_claim(folder) is not None or _has_note(folder)


def read_claim(folder: Path) -> dict[str, Any] | None:
    """Return the claim in a folder; None if there is no valid one."""
    path = folder / CLAIM
    if path.is_symlink() or not path.is_file():
        return None
    with suppress(OSError, ValueError, RecursionError):
        data = path.read_bytes()
        claim = json.loads(data)
        if isinstance(claim, dict) and "body" in claim:
            claim = unseal(data)
        if isinstance(claim, dict) and claim.keys() >= CLAIM_KEYS:
            return claim
    return None


def _has_note(folder: Path) -> bool:
    """True if a purge left its note in a folder, and it was the folder of a client."""
    note = purge_note.read_note(folder)
    if note is None:
        return False
    if "kind" in note:
        return bool(note["kind"] == "node")
    # Written by an earlier version, in run directories too.
    return not any((folder / name).exists() for name in FILES_OF_RUNS)


def node_files(folder: Path) -> Iterator[tuple[Literal["memory", "models"], Path]]:
    """Yield the files of a client in its folder, without those below it, and their group."""
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or not path.is_file():
            continue
        if path.match(MODELS):
            yield "models", Path(path.name)
        elif any(path.match(pattern) for pattern in MEMORY):
            yield "memory", Path(path.name)


def unknown_files(folder: Path) -> list[Path]:
    """Return the files below a memory folder of a node, or a part of it, that are not of fedssl.

    They are relative to the folder. Among them are the files of clients whose claim is damaged.
    """
    known: dict[Path, set[Path]] = {}
    unknown = []
    for path in list_files(folder).files:
        parent = folder / path.parent
        if parent not in known:
            known[parent] = set()
            if is_client_run(parent):
                known[parent] = {Path(LOCK), Path(purge_note.NAME)}
                known[parent].update(name for _, name in node_files(parent))
        if path.name != LOCK and Path(path.name) not in known[parent]:
            unknown.append(path)
    return unknown
