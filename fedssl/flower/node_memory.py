"""The state of a client between rounds, on its node's disk: one file per round, written atomically.

    FOLDER/images.sha256               hash of the client's images when it first took part
    FOLDER/claim.json                  the attempt that began last, which alone may write
    FOLDER/00004.2.remembered          state after round 4 in attempt 2 at the run, with its hash
    FOLDER/purged.json                 `fedssl purge` removed the state: the client may not continue

Flower starts a process for each message, and a process may outlive its killed node. Only the
process that claimed a folder last may write there, and no attempt older than that of the last claim
can claim the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote
from uuid import uuid4

from fedssl.core.console import ignore_message, print_to_stderr
from fedssl.core.errors import ClientError
from fedssl.core.files.atomic import write_atomic
from fedssl.core.files.lock import locked, make_private
from fedssl.core.files.purge_note import purged_at
from fedssl.core.files.sealed import seal, unseal
from fedssl.core.state.codec import dumps, loads
from fedssl.core.state.tree import Tree
from fedssl.flower.messages import RoundTask

SUPERSEDED = "another process has taken over this client; this one may no longer save its state"
PURGED = (
    "its state in this run was removed from its disk by `fedssl purge`: it cannot take part in "
    "this run any more"
)
DIGEST_BYTES = 32  # of SHA-256


class Version(NamedTuple):
    """A file with the state after a round."""

    round: int
    attempt: int
    path: Path


class NodeMemory:
    """One task's access to the stored state of its client in this run.

    `unpack_task` validates the names in a task: no path leads out of `root`.
    """

    def __init__(self, root: Path, task: RoundTask) -> None:
        """Claim the folder; raises ClientError if a newer attempt has claimed it."""
        self._task = task
        self._owner = uuid4().hex
        self.folder = root / quote(task.client, safe="") / quote(task.run, safe="")
        for folder in (root, self.folder.parent, self.folder):
            make_private(folder)
        for folder in (self.folder.parent, self.folder):
            # An earlier version let others read these; the mode of `root` is the operator's choice.
            with suppress(PermissionError):
                folder.chmod(0o700)
        with locked(self.folder, ignore_message):
            if purged_at(self.folder) is not None:
                raise ClientError(PURGED)
            newest = self._read_claim()
            if newest and (newest["attempt"], newest["round"]) > (task.attempt, task.round):
                raise ClientError(SUPERSEDED)
            claim = {
                "attempt": task.attempt,
                "round": task.round,
                "by": self._owner,
                "pid": os.getpid(),
            }
            write_atomic(self.folder / "claim.json", seal(claim))

    def _read_claim(self) -> dict[str, Any]:
        """Return the newest claim.

        Empty if it is missing or damaged, so that this task may claim the folder.
        """
        path = self.folder / "claim.json"
        if not path.is_file():
            return {}
        data = path.read_bytes()
        try:
            claim = json.loads(data)
            if isinstance(claim, dict) and {"attempt", "round", "by"} <= claim.keys():
                return claim  # written by an earlier version, without a hash
            return unseal(data)
        except ValueError:
            print_to_stderr(f"{path} is damaged and is not used")
            return {}

    def holds_claim(self) -> bool:
        """True if no other process has claimed the folder since."""
        return self._read_claim().get("by") == self._owner

    def _versions(self) -> list[Version]:
        """Return the versions that this attempt continues from, the newest last."""
        versions: list[Version] = []
        for path in self.folder.glob("*.remembered"):
            round, attempt, _ = path.name.split(".")
            version = Version(int(round), int(attempt), path)
            if self._is_valid(version):
                versions.append(version)
        return sorted(versions)

    def _is_valid(self, version: Version) -> bool:
        """True unless a later attempt began at the version's round or before."""
        if version.attempt > self._task.attempt:
            return False
        later_starts = self._task.starts[version.attempt + 1 :]
        return all(version.round < start for start in later_starts)

    def check_images(self, fingerprint: str) -> None:
        """Raise if the client's images differ from those it had when it first took part."""
        path = self.folder / "images.sha256"
        with locked(self.folder, ignore_message):
            if not path.is_file():
                write_atomic(path, fingerprint.encode())
            elif path.read_bytes() != fingerprint.encode():
                print_to_stderr(
                    f"the client's images do not match {path}: "
                    "they were changed, or that file is damaged"
                )
                raise ClientError(
                    "its images are not those it had when it first took part in this run"
                )

    def read(self) -> Tree:
        """Return the client's state before this round; empty if it has none."""
        earlier = [version for version in self._versions() if version.round < self._task.round]
        if not earlier:
            return {}
        path = earlier[-1].path
        try:
            return loads(_verified(path.read_bytes()))
        except (OSError, ValueError, KeyError) as problem:
            print_to_stderr(
                f"{path} cannot be read: {problem}. Remove that file to let the client continue "
                "from the version before it, or from an empty state"
            )
            raise ClientError(
                "this client's state cannot be read from its disk; see the node's log"
            ) from problem

    def write(self, tree: Tree) -> None:
        """Store the state after this round; raises if another process has claimed the folder.

        Deletes versions that the server can no longer go back to.
        """
        data = dumps(tree)
        name = f"{self._task.round:05d}.{self._task.attempt}.remembered"
        with locked(self.folder, ignore_message):
            if not self.holds_claim():
                raise ClientError(SUPERSEDED)
            write_atomic(self.folder / name, hashlib.sha256(data).digest() + data)
            self._delete_old()

    def _delete_old(self) -> None:
        """Keep the versions from round `oldest` on and the newest one before it."""
        keep: set[Path] = set()
        newest_before: Path | None = None
        for version in self._versions():
            if version.round >= self._task.oldest:
                keep.add(version.path)
            else:
                newest_before = version.path
        if newest_before is not None:
            keep.add(newest_before)
        files = {*self.folder.glob("*.remembered"), *self.folder.glob("*.remembered.tmp")}
        for path in files - keep:
            path.unlink()


def _verified(data: bytes) -> bytes:
    """Return the data after its SHA-256; raises ValueError if they do not match."""
    digest = data[:DIGEST_BYTES]
    body = data[DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        raise ValueError("its hash does not match")
    return body
