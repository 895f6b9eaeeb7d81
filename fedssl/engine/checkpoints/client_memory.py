"""What clients remember between rounds: tagged with the round that wrote it, kept where there is room for it.

A thread of its own reads ahead from the disk and writes behind to it while clients train. Nothing is ever changed in
place, so a client's memory can be read in whichever state of its way to the disk it is.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import torch

from fedssl.core.errors import RunError
from fedssl.core.files.blob_file import BlobFile, Extent
from fedssl.core.state.codec import dumps, loads
from fedssl.core.state.tree import Tree, nbytes
from fedssl.engine.checkpoints.placement import Tier, Wanted, choose, on_host, pinned, ready


class Remembered:
    """What one client remembered after one round: in memory, in the rows file, or in both."""

    __slots__ = ("_event", "_tree", "extent", "round")
    _lock = (
        threading.Lock()
    )  # one for all: each would be a small block of the heap that stays amid large ones that go

    def __init__(
        self,
        round: int,
        tree: Tree | None = None,
        extent: Extent | None = None,
        event: torch.cuda.Event | None = None,
    ) -> None:
        """`event`: after which the tree is whole."""
        self.round, self.extent = round, extent
        self._tree, self._event = tree, event

    @property
    def tree(self) -> Tree:
        tree = self._tree  # looked at once: another thread may put it away at any moment
        if tree is None:
            return loads(self.check())
        if self._event is not None:
            self._event.synchronize()
        return tree

    @property
    def on_disk_only(self) -> bool:
        return self._tree is None

    def check(self) -> bytes:
        """What lies in the rows file; a ValueError if that is not what was written."""
        assert self.extent is not None
        return self.extent.read()

    def write(self, rows: BlobFile) -> Extent:
        """Its place in the rows file. It is written there once, by whoever asks first."""
        with self._lock:
            if self.extent is None or self.extent.file is not rows:
                self.extent = rows.put(dumps(self.tree))
            return self.extent

    def put_away(self, rows: BlobFile) -> None:
        self.write(rows)
        self._tree = None


class Turn(NamedTuple):
    """One attempt of a client at a round. A newer one of the same client makes it void, whatever the rounds are."""

    client: str
    round: int
    attempt: int


class Memory:
    """What the clients of this process remember. `rows` is where it lies on disk; without, it stays in memory."""

    def __init__(
        self,
        rows: BlobFile | None = None,
        found: Mapping[str, Remembered] | None = None,
        tier: Wanted = "auto",
        device: torch.device | None = None,
        clients: int = 1,
        ahead: int = 1,
    ) -> None:
        """`found` by a resumed run; `clients` there will be; `ahead`: rows read ahead, and written behind, at most."""
        self._rows, self._wanted, self._device = rows, tier, device or torch.device("cpu")
        self._clients, self._ahead = clients, ahead
        self._tier: Tier | None = None if rows is not None else "device"
        self._latest = dict(found or {})
        self._finished = self._latest.copy()  # after the last finished round
        self._attempts: dict[str, int] = {}
        self._expected: dict[
            Turn, None
        ] = {}  # in the order of their turns; a dict, to leave it from the middle
        self._fetched: dict[Turn, Future[Tree]] = {}
        self._behind: deque[Future[None]] = deque()
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, "memory")

    def expect(self, client: str, round: int) -> Turn:
        """A client's turn is coming: what it remembers may be read ahead. Voids its earlier turns."""
        with self._lock:
            attempt = self._attempts[client] = self._attempts.get(client, 0) + 1
            turn = Turn(client, round, attempt)
            self._expected[turn] = None
            self._fetch()
        return turn

    def expect_nobody(self) -> None:
        """Whoever was expected does not come any more."""
        with self._lock:
            self._expected.clear()
            self._fetched.clear()

    def _fetch(self) -> None:
        while self._expected and len(self._fetched) < self._ahead:
            turn = next(iter(self._expected))
            del self._expected[turn]
            found = self._before(turn)
            if found is not None and found.on_disk_only:
                self._fetched[turn] = self._thread.submit(self._load, turn)

    def read(self, turn: Turn) -> Tree:
        """What the client remembered before this round, in host memory or on the device it was written on."""
        with self._lock:
            self._expected.pop(turn, None)
            fetched = self._fetched.pop(turn, None)
            self._fetch()
        return fetched.result() if fetched is not None else self._load(turn)

    def _load(self, turn: Turn) -> Tree:
        found = self._before(turn)
        if found is None:
            return {}
        read = found.on_disk_only
        try:
            tree = found.tree
        except (OSError, ValueError) as problem:
            raise RunError(
                f"what client {turn.client} remembers cannot be read: {problem}; the same command goes on from the "
                "last checkpoint that is whole"
            ) from problem
        return pinned(tree) if read and self._device.type == "cuda" else tree

    def _before(self, turn: Turn) -> Remembered | None:
        """The newest that is older than the round: what a client that repeats it read the first time."""
        latest, finished = self._latest.get(turn.client), self._finished.get(turn.client)
        if latest is None or latest.round < turn.round:
            return latest
        if finished is not None and finished.round >= turn.round:
            raise ValueError(
                f"round {turn.round} is over: what client {turn.client} remembered before it is gone"
            )
        return finished

    def write(self, turn: Turn, tree: Tree) -> bool:
        """Remember; False, and nothing is changed, if the client has begun another turn since."""
        if (
            not tree and turn.client not in self._latest
        ):  # a client that keeps nothing costs nothing
            return True
        tier = self._choose(tree)
        kept = tree if tier == "device" else on_host(tree)
        version = Remembered(
            turn.round, kept, event=ready(tree)
        )  # that is, when the copy on its way has arrived
        with self._lock:
            if self._attempts.get(turn.client) != turn.attempt:
                return False
            self._latest[turn.client] = version
        if tier == "disk":
            self._write_behind(version)
        return True

    def _choose(self, tree: Tree) -> Tier:
        with self._lock:
            if self._tier is None:
                self._tier = choose(self._wanted, self._device, nbytes(tree), self._clients)
            return self._tier

    def _write_behind(self, version: Remembered) -> None:
        assert self._rows is not None
        with self._lock:
            self._behind.append(self._thread.submit(version.put_away, self._rows))
            oldest = self._behind.popleft() if len(self._behind) > self._ahead else None
        if oldest is not None:
            try:
                oldest.result()
            except OSError as problem:
                raise RunError(
                    f"what a client remembers could not be written: {problem}"
                ) from problem

    def snapshot(self) -> dict[str, Remembered]:
        """All there is at the end of a round. To go back to, should the next one be broken off."""
        with self._lock:
            self._finished = self._latest.copy()
            return self._finished

    def latest(self, client: str) -> Tree:
        return self._latest[client].tree if client in self._latest else {}

    def close(self) -> None:
        """Wait for what is being written. What could not be is still in memory, for a last checkpoint to try."""
        self._thread.shutdown(cancel_futures=False)
