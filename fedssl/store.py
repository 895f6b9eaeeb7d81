"""Checkpoints and client memory: atomic, hashed, never pickled.

    checkpoints/00012.json            the manifest: names and SHA-256 of all files that make up round 12
    checkpoints/00012.safetensors     the sites
    memory/CLIENT@ROUND.safetensors   what a client remembers, tagged with the round that wrote it

A file is written under a temporary name, synced and renamed; the manifest comes last, so a checkpoint is there
whole or not at all. The last two are kept. A client's memory that did not change is not written again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from fedssl.errors import RunError
from fedssl.federate import Sites
from fedssl.tree import Tree, Value, dumps, loads

KEPT = 2


class Remembered(NamedTuple):
    round: int  # that wrote it
    tree: Tree


class Snapshot(NamedTuple):
    """A run after `rounds` rounds. Trees are never changed in place, so taking one is a few references."""

    rounds: int
    sites: Sites
    memory: Mapping[str, Remembered]


class Memory:
    """What clients of this process remember between rounds."""

    def __init__(self, remembered: Mapping[str, Remembered] | None = None) -> None:
        self._latest = dict(remembered or {})

    def read(self, client: str) -> Tree:
        return self._latest[client].tree if client in self._latest else {}

    def write(self, client: str, round: int, tree: Tree) -> None:
        if tree:  # a client that keeps nothing costs no file
            self._latest[client] = Remembered(round, tree)

    def snapshot(self) -> dict[str, Remembered]:
        return dict(self._latest)


class Store:
    """The checkpoints of one run directory. Saving goes on in the background while training continues."""

    def __init__(self, root: Path) -> None:
        self.checkpoints, self.memory = root / "checkpoints", root / "memory"
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None

    @property
    def busy(self) -> bool:
        return self._pending is not None and not self._pending.done()

    def save(self, snapshot: Snapshot) -> None:
        """Start writing; a failure of the previous write is raised here."""
        self.wait()
        self._pending = self._writer.submit(self._save, snapshot)

    def wait(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            try:
                pending.result()
            except OSError as problem:
                raise RunError(f"a checkpoint could not be written: {problem}") from problem

    def _save(self, snapshot: Snapshot) -> None:
        for folder in (self.checkpoints, self.memory):
            folder.mkdir(parents=True, exist_ok=True)
        name = f"{snapshot.rounds:05d}"
        sites = self.checkpoints / f"{name}.safetensors"
        files = {f"checkpoints/{sites.name}": write_atomic(sites, dumps(_flatten(snapshot.sites)))}
        known = self._known_hashes()
        for client, (round, tree) in snapshot.memory.items():
            path = self.memory / _memory_name(client, round)
            key = f"memory/{path.name}"
            written = key in known and path.exists()
            files[key] = known[key] if written else write_atomic(path, dumps(tree))
        body = {
            "rounds": snapshot.rounds,
            "sites": list(snapshot.sites),
            "memory": {client: round for client, (round, _) in snapshot.memory.items()},
            "files": files,
        }
        write_atomic(self.checkpoints / f"{name}.json", _seal(body))
        self._forget_old()

    def _known_hashes(self) -> dict[str, str]:
        known: dict[str, str] = {}
        for manifest in self._manifests():
            with contextlib.suppress(ValueError):
                known |= _unseal(manifest.read_bytes())["files"]
        return known

    def _manifests(self) -> list[Path]:
        return sorted(self.checkpoints.glob("*.json"), key=lambda path: int(path.stem), reverse=True)

    def _forget_old(self) -> None:
        for manifest in self._manifests()[KEPT:]:
            manifest.unlink()
        needed = self._known_hashes()
        left = [*self.checkpoints.glob("*.safetensors*"), *self.checkpoints.glob("*.tmp"), *self.memory.glob("*")]
        for path in dict.fromkeys(left):
            if f"{path.parent.name}/{path.name}" not in needed:
                path.unlink()

    def load(self, say: Callable[[str], None]) -> Snapshot | None:
        """The newest checkpoint whose every file is what its manifest says; None if there never was one.

        Only reads, so that anybody may look at a run while it goes on.
        """
        manifests = self._manifests()
        for manifest in manifests:
            try:
                return self._read(manifest)
            except (ValueError, KeyError, FileNotFoundError) as problem:
                say(f"checkpoint {manifest.stem} is damaged ({problem}); trying the one before")
            except OSError as problem:  # the disk's fault, perhaps a passing one: no reason to go back
                raise RunError(f"{manifest} cannot be read: {problem}; nothing was changed") from problem
        if manifests:
            raise RunError(
                f"no checkpoint in {self.checkpoints} is whole; nothing was changed. Start again in a new directory"
            )
        return None

    def resume(self, say: Callable[[str], None]) -> Snapshot | None:
        """`load`, to go on from it: newer checkpoints, all damaged, are set aside for good.

        Or their files would pass for those of the rounds about to be replayed.
        """
        snapshot = self.load(say)
        for manifest in self._manifests():
            if snapshot is not None and int(manifest.stem) > snapshot.rounds:
                manifest.rename(manifest.with_suffix(".damaged"))
        return snapshot

    def _read(self, manifest: Path) -> Snapshot:
        body = _unseal(manifest.read_bytes())
        data = {}
        for name, expected in body["files"].items():
            data[name] = (self.checkpoints.parent / name).read_bytes()
            if hashlib.sha256(data[name]).hexdigest() != expected:
                raise ValueError(f"{name} does not match its hash")
        flat = loads(data[f"checkpoints/{manifest.stem}.safetensors"])
        memory = {
            client: Remembered(round, loads(data[f"memory/{_memory_name(client, round)}"]))
            for client, round in body["memory"].items()
        }
        return Snapshot(body["rounds"], _unflatten(flat, body["sites"]), memory)


def _memory_name(client: str, round: int) -> str:
    """A file name for any client id, even one taken from a folder whose name is not UTF-8."""
    return f"{quote(client, safe='', errors='surrogateescape')}@{round:05d}.safetensors"


def write_atomic(path: Path, data: bytes) -> str:
    """Write under a temporary name, sync, rename; returns the SHA-256. Nobody ever sees half a file."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return hashlib.sha256(data).hexdigest()


def _seal(body: Mapping[str, Any]) -> bytes:
    text = json.dumps(body, sort_keys=True)
    return json.dumps({"body": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}).encode()


def _unseal(data: bytes) -> dict[str, Any]:
    sealed = json.loads(data)
    if not isinstance(sealed, dict) or sealed.keys() != {"body", "sha256"}:
        raise ValueError("its manifest is not one")
    if hashlib.sha256(str(sealed["body"]).encode()).hexdigest() != sealed["sha256"]:
        raise ValueError("its manifest does not match its hash")
    body: dict[str, Any] = json.loads(sealed["body"])
    return body


def _flatten(sites: Sites) -> dict[str, Value]:
    return {f"{i}/{key}": value for i, tree in enumerate(sites.values()) for key, value in tree.items()}


def _unflatten(flat: Mapping[str, Value], names: list[str]) -> dict[str, Tree]:
    sites: dict[str, dict[str, Value]] = {name: {} for name in names}
    for path, value in flat.items():
        index, _, key = path.partition("/")
        sites[names[int(index)]][key] = value
    return dict(sites)
