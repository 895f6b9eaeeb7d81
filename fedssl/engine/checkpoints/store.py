"""Checkpoints: atomic, hashed, never pickled.

    checkpoints/00012.json           the manifest: the SHA-256 of all that makes up round 12
    checkpoints/00012.safetensors    the sites
    memory/rows                      client memories; the manifest has the place of each

A file is written under a temporary name, synced and renamed; new rows are synced before the
manifest, which comes last, so that a checkpoint is either complete or absent. The last two are
kept. A row is written to a place that neither of them refers to, and one that did not change is not
written again: a checkpoint costs one sync for all clients.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Container, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from fedssl.algorithm import Sites
from fedssl.core.errors import RunError
from fedssl.core.files.atomic import write_atomic
from fedssl.core.files.blob_file import BlobFile, Extent
from fedssl.core.files.purge_note import raise_if_purged
from fedssl.core.files.sealed import seal, unseal
from fedssl.core.state.codec import dumps, loads
from fedssl.core.state.tree import Tree, Value
from fedssl.engine.checkpoints.client_memory import StoredMemory
from fedssl.engine.uploads.norm_bound import TypicalUpdate

CHECKPOINTS_KEPT = 2
MAX_READ_ATTEMPTS = 10  # while another process replaces checkpoints


class Snapshot(NamedTuple):
    """A run after `rounds` rounds. Trees are immutable, so a snapshot is a few references."""

    rounds: int
    sites: Sites
    memory: Mapping[str, StoredMemory]
    # The median update that updates of the next round are compared with.
    typical_update: TypicalUpdate | None = None
    releases: int = 0  # lines in the privacy ledger, at least


class _Opened(NamedTuple):
    rows: BlobFile
    # The places of each checkpoint's rows, by round; they are not overwritten while they are here.
    kept: dict[int, dict[str, Extent]]


class Store:
    """The checkpoints of one run directory. They are written in the background."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.checkpoints = root / "checkpoints"
        self._path = root / "memory" / "rows"
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None

    @property
    def rows(self) -> BlobFile:
        """The file of client memories."""
        return self._opened.rows

    @cached_property
    def _opened(self) -> _Opened:
        """The rows file, with the places reserved that the checkpoints on disk refer to."""
        rows = BlobFile(self._path)
        kept: dict[int, dict[str, Extent]] = {}
        claimed: dict[tuple[int, int, str], Extent] = {}  # rows that did not change are in both
        for manifest in self._manifests()[:CHECKPOINTS_KEPT]:
            with contextlib.suppress(ValueError, KeyError):  # damaged: its rows are not needed
                memory = unseal(manifest.read_bytes())["memory"]
                extents = {}
                for client, (_, offset, length, sha256) in memory.items():
                    place = (offset, length, sha256)
                    if place not in claimed:
                        claimed[place] = rows.claim(*place)
                    extents[client] = claimed[place]
                kept[int(manifest.stem)] = extents
        return _Opened(rows, kept)

    @property
    def busy(self) -> bool:
        """True while a checkpoint is being written."""
        return self._pending is not None and not self._pending.done()

    def save(self, snapshot: Snapshot) -> None:
        """Start writing; a failure of the previous write is raised here."""
        self.wait()
        self._pending = self._writer.submit(self._save, snapshot)

    def wait(self) -> None:
        """Wait until the pending checkpoint is written; raise RunError if that failed."""
        pending = self._pending
        self._pending = None
        if pending is not None:
            try:
                pending.result()
            except OSError as problem:
                raise RunError(f"a checkpoint could not be written: {problem}") from problem

    def _save(self, snapshot: Snapshot) -> None:
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        sites = self.checkpoints / f"{snapshot.rounds:05d}.safetensors"
        files = {f"checkpoints/{sites.name}": write_atomic(sites, dumps(_flatten(snapshot.sites)))}
        rows, kept = self._opened
        extents = {}
        places = {}
        for client, version in snapshot.memory.items():
            extent = version.write(rows)
            extents[client] = extent
            places[client] = [version.round, extent.offset, extent.length, extent.sha256]
        rows.sync()
        body = {
            "rounds": snapshot.rounds,
            "sites": list(snapshot.sites),
            "memory": places,
            "files": files,
            "usual": snapshot.typical_update,
        }
        if snapshot.releases:
            body["releases"] = snapshot.releases
        write_atomic(sites.with_suffix(".json"), seal(body))
        kept[snapshot.rounds] = extents
        self._forget_old()

    def _manifests(self) -> list[Path]:
        numbered = (path for path in self.checkpoints.glob("*.json") if path.stem.isdecimal())
        return sorted(numbered, key=lambda path: int(path.stem), reverse=True)

    def digest(self) -> str | None:
        """Return a hash of all that the newest checkpoint contains; None if it cannot be read.

        Equal states have equal digests, wherever their rows are. Files are not verified here.
        """
        newest = self._manifests()[:1]
        if not newest:
            return None
        try:
            body = unseal(newest[0].read_bytes())
        except (OSError, ValueError):
            return None
        rows = {client: sha256 for client, (_, _, _, sha256) in body["memory"].items()}
        content = [body["rounds"], body["sites"], sorted(body["files"].values()), rows]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def oldest(self) -> int:
        """Return the round of the oldest kept checkpoint, to which a run may have to return."""
        newest_first = self._manifests()[:CHECKPOINTS_KEPT]
        if not newest_first:
            return 0
        return int(newest_first[-1].stem)

    def _forget_old(self) -> None:
        manifests = self._manifests()
        for manifest in manifests[CHECKPOINTS_KEPT:]:
            manifest.unlink()
            # After the manifest is gone: a row must not be read while it is being replaced.
            self._opened.kept.pop(int(manifest.stem), None)
        needed = {f"{manifest.stem}.safetensors" for manifest in manifests[:CHECKPOINTS_KEPT]}
        for path in {*self.checkpoints.glob("*.safetensors*"), *self.checkpoints.glob("*.tmp")}:
            if path.name not in needed:
                path.unlink()

    def load(self, notify: Callable[[str], None], check_rows: bool = True) -> Snapshot | None:
        """Return the newest checkpoint that matches its manifest; None if there is no checkpoint.

        Only reads, so that other processes can look at a run in progress. Client memories are read
        later, when they are used, and here to be verified.
        """
        for _ in range(MAX_READ_ATTEMPTS):
            manifests = self._manifests()
            for manifest in manifests:
                try:
                    return self._read(manifest, check_rows)
                except (ValueError, KeyError, FileNotFoundError) as problem:
                    if not manifest.exists():
                        break  # not damaged: a newer one replaced it while it was being read
                    notify(
                        f"checkpoint {manifest.stem} is damaged ({problem}); "
                        "trying the previous one"
                    )
                except OSError as problem:
                    # A fault of the disk, perhaps temporary: no reason to use an older checkpoint.
                    raise RunError(
                        f"{manifest} cannot be read: {problem}; nothing was changed"
                    ) from problem
            else:
                if not manifests:
                    return None
                raise RunError(
                    f"no checkpoint in {self.checkpoints} is intact; nothing was changed. "
                    "Start again in a new directory"
                )
        raise RunError(
            f"checkpoints in {self.checkpoints} are replaced faster than they can be read; "
            "try again"
        )

    def resume(self, notify: Callable[[str], None]) -> Snapshot | None:
        """Load the newest intact checkpoint to resume from it; rename damaged ones to `.damaged`.

        Newer ones are renamed because training writes the checkpoints of those rounds again. The
        older one, the spare, is verified now, while the newest is intact.
        """
        raise_if_purged(self.root)
        snapshot = self.load(notify)
        if snapshot is None:
            return None
        newer = [path for path in self._manifests() if int(path.stem) > snapshot.rounds]
        for manifest in newer + self.damaged_spares(snapshot, notify):
            manifest.rename(manifest.with_suffix(".damaged"))
        extents = self._opened.kept[snapshot.rounds]
        memory = {}
        for client, version in snapshot.memory.items():
            memory[client] = StoredMemory(version.round, extent=extents[client])
        return snapshot._replace(memory=memory)

    def damaged_spares(self, newest: Snapshot, notify: Callable[[str], None]) -> list[Path]:
        """Verify older checkpoints and return the manifests of damaged ones.

        Rows that the newest one refers to as well have been verified with it.
        """
        known = set()
        for version in newest.memory.values():
            extent = version.extent
            if extent is not None:
                known.add((extent.offset, extent.length, extent.sha256))
        damaged = []
        for spare in self._manifests():
            if int(spare.stem) >= newest.rounds:
                continue
            try:
                self._read(spare, check_rows=True, known=known)
            except (ValueError, KeyError, OSError) as problem:
                notify(
                    f"checkpoint {spare.stem} is damaged ({problem}); "
                    f"the newest, of round {newest.rounds}, is intact"
                )
                damaged.append(spare)
        return damaged

    def _read(
        self, manifest: Path, check_rows: bool, known: Container[tuple[int, int, str]] = ()
    ) -> Snapshot:
        """Read a checkpoint and verify it, except for rows that are `known` to be intact."""
        body = unseal(manifest.read_bytes())
        data = {}
        for name, expected in body["files"].items():
            data[name] = (self.root / name).read_bytes()
            if hashlib.sha256(data[name]).hexdigest() != expected:
                raise ValueError(f"{name} does not match its hash")
        if any(isinstance(entry, int) for entry in body["memory"].values()):
            raise RunError(
                f"{self.root} was written by an earlier version of fedssl and cannot be resumed; "
                "nothing was changed. Start again in a new directory"
            )
        rows = BlobFile(self._path)
        memory = {}
        for client, (round, *place) in body["memory"].items():
            memory[client] = StoredMemory(round, extent=rows.claim(*place))
            if check_rows and tuple(place) not in known:
                memory[client].check()
        flat = loads(data[f"checkpoints/{manifest.stem}.safetensors"])
        numbers = body.get("usual")
        typical = TypicalUpdate(*numbers) if numbers else None
        sites = _unflatten(flat, body["sites"])
        return Snapshot(body["rounds"], sites, memory, typical, body.get("releases", 0))


def _flatten(sites: Sites) -> dict[str, Value]:
    flat: dict[str, Value] = {}
    for i, tree in enumerate(sites.values()):
        for key, value in tree.items():
            flat[f"{i}/{key}"] = value
    return flat


def _unflatten(flat: Mapping[str, Value], names: list[str]) -> dict[str, Tree]:
    sites: dict[str, dict[str, Value]] = {name: {} for name in names}
    for path, value in flat.items():
        index, _, key = path.partition("/")
        sites[names[int(index)]][key] = value
    return dict(sites)
