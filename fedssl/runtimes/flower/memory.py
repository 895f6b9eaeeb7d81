"""What a client remembers, on its own disk: one file for each round, written whole or not at all.

    FOLDER/images.sha256               of the client's images when it first took part
    FOLDER/claim.json                  who may write: the attempt that began last
    FOLDER/00004.2.remembered          what the client remembered after round 4, in attempt 2 at the run, and its hash

Flower starts a process for each message, and one whose node was killed may live on. Whoever claims a folder last is the
only one who may write there, and an attempt older than the one that claimed it may not claim it any more.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote
from uuid import uuid4

from fedssl.data.progress import say_on_stderr
from fedssl.errors import ClientError
from fedssl.lock import make_private
from fedssl.runtimes.flower.words import Task
from fedssl.store import seal, unseal, write_atomic
from fedssl.tree import Tree, dumps, loads

STALE = "a newer attempt of this client at the run has begun; this one may not write"


class Version(NamedTuple):
    """A file with what was remembered after a round."""

    round: int
    attempt: int
    path: Path


class NodeMemory:
    """One task's access to what its client remembers in this run. The task's names are as `task_in` lets them be: none
    leads out of `root`."""

    def __init__(self, root: Path, task: Task) -> None:
        """Claims the folder; refused if a newer attempt has."""
        self._task, self._me = task, uuid4().hex
        self.folder = root / quote(task.client, safe="") / quote(task.run, safe="")
        for folder in (root, self.folder.parent, self.folder):
            make_private(folder)
        for folder in (self.folder.parent, self.folder):
            with suppress(PermissionError):  # an earlier version let others read them; the root is the operator's own
                folder.chmod(0o700)
        with self._locked():
            held = self._claim()
            if held and (held["attempt"], held["round"]) > (task.attempt, task.round):
                raise ClientError(STALE)
            mine = {"attempt": task.attempt, "round": task.round, "by": self._me, "pid": os.getpid()}
            write_atomic(self.folder / "claim.json", seal(mine))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.folder / "lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # held for moments; a dead process's is dropped by the kernel
            yield

    def _claim(self) -> dict[str, Any]:
        """Return the newest claim; an empty one if there is none or it is damaged, so that this task may claim."""
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
            say_on_stderr(f"{path} is damaged and is not used")
            return {}

    def mine(self) -> bool:
        """Whether nobody has claimed the folder since."""
        return self._claim().get("by") == self._me

    def _versions(self) -> list[Version]:
        """Those that belong to this attempt's past, the newest last."""
        found = []
        for path in self.folder.glob("*.remembered"):
            round, attempt, _ = path.name.split(".")
            found.append(Version(int(round), int(attempt), path))
        return sorted(version for version in found if self._valid(version))

    def _valid(self, version: Version) -> bool:
        """Not of a round that a later attempt began anew, or before."""
        later = self._task.starts[version.attempt + 1 :]
        return version.attempt <= self._task.attempt and all(version.round < start for start in later)

    def agree(self, images: str) -> None:
        """Refuse to go on with other images than the client had when it first took part in the run."""
        path = self.folder / "images.sha256"
        with self._locked():
            if not path.is_file():
                write_atomic(path, images.encode())
            elif path.read_bytes() != images.encode():
                say_on_stderr(f"the client's images do not match {path}: they were changed, or that file is damaged")
                raise ClientError("its images are not those it had when it first took part in this run")

    def read(self) -> Tree:
        """What the client remembered before this round."""
        before = [version for version in self._versions() if version.round < self._task.round]
        if not before:
            return {}
        path = before[-1].path
        try:
            return loads(_checked(path.read_bytes()))
        except (OSError, ValueError, KeyError) as problem:
            say_on_stderr(
                f"{path} cannot be read: {problem}. Once that file is removed, the client goes on with what it "
                "remembered before, or with nothing"
            )
            raise ClientError(
                "what this client remembers cannot be read from its disk; its own log says what to do"
            ) from problem

    def write(self, tree: Tree) -> None:
        """Remember; refused if somebody has claimed the folder since. Drops what the server cannot go back to."""
        data = dumps(tree)
        sealed = hashlib.sha256(data).digest() + data
        with self._locked():
            if not self.mine():
                raise ClientError(STALE)
            write_atomic(self.folder / f"{self._task.round:05d}.{self._task.attempt}.remembered", sealed)
            self._forget_old()

    def _forget_old(self) -> None:
        valid = self._versions()
        older = [version for version in valid if version.round < self._task.oldest]
        kept = {version.path for version in valid if version.round >= self._task.oldest}
        kept |= {older[-1].path} if older else set()
        for path in {*self.folder.glob("*.remembered"), *self.folder.glob("*.remembered.tmp")} - kept:
            path.unlink()


def _checked(sealed: bytes) -> bytes:
    if hashlib.sha256(sealed[32:]).digest() != sealed[:32]:
        raise ValueError("not what was written")
    return sealed[32:]
