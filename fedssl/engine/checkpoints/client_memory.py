"""Client memory between rounds: stored with the round that wrote it, wherever there is room.

A thread reads ahead from the disk and writes behind to it while clients train. Nothing is changed
in place, so a client's memory can be read at any point of its way to the disk.
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


class StoredMemory:
    """One client's memory after one round: in memory, in the rows file, or in both."""

    __slots__ = ("_event", "_tree", "extent", "round")
    # One lock for all: a lock each would leave small blocks of the heap between large ones.
    _lock = threading.Lock()

    def __init__(
        self,
        round: int,
        tree: Tree | None = None,
        extent: Extent | None = None,
        event: torch.cuda.Event | None = None,
    ) -> None:
        """`event` is recorded when the tree is complete."""
        self.round = round
        self.extent = extent
        self._tree = tree
        self._event = event

    @property
    def tree(self) -> Tree:
        """The memory itself, read from the rows file if it is only there."""
        tree = self._tree  # read once: another thread may move it to the disk at any moment
        if tree is None:
            return loads(self.check())
        if self._event is not None:
            self._event.synchronize()
        return tree

    @property
    def on_disk_only(self) -> bool:
        """True if the memory is in the rows file and not in memory."""
        return self._tree is None

    def check(self) -> bytes:
        """Return the bytes in the rows file; raise ValueError if they are not those written."""
        assert self.extent is not None
        return self.extent.read()

    def write(self, rows: BlobFile) -> Extent:
        """Return its place in the rows file; the first call writes it there."""
        with self._lock:
            if self.extent is None or self.extent.file is not rows:
                self.extent = rows.put(dumps(self.tree))
            return self.extent

    def release(self, rows: BlobFile) -> None:
        """Write the memory to the rows file and release it here."""
        self.write(rows)
        self._tree = None


class RoundAttempt(NamedTuple):
    """One attempt of a client at a round. A newer attempt of the same client invalidates it."""

    client: str
    round: int
    number: int  # of the client's attempts in this process


class ClientMemory:
    """The memories of this process's clients. Without a rows file they stay in memory."""

    def __init__(
        self,
        rows: BlobFile | None = None,
        resumed: Mapping[str, StoredMemory] | None = None,
        tier: Wanted = "auto",
        device: torch.device | None = None,
        clients: int = 1,
        ahead: int = 1,
    ) -> None:
        """`resumed` are the memories of a resumed run, `clients` the number of clients.

        At most `ahead` rows are read ahead and written behind.
        """
        self._rows = rows
        self._wanted = tier
        self._device = device or torch.device("cpu")
        self._clients = clients
        self._ahead = ahead
        self._tier: Tier | None = None  # chosen when the first memory is written
        if rows is None:
            self._tier = "device"
        self._latest = dict(resumed or {})
        self._finished = self._latest.copy()  # after the last finished round
        self._attempts: dict[str, int] = {}
        # In the order in which clients start; a dict, so that one can be removed from the middle.
        self._expected: dict[RoundAttempt, None] = {}
        self._fetched: dict[RoundAttempt, Future[Tree]] = {}
        self._behind: deque[Future[None]] = deque()
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, "memory")

    def expect(self, client: str, round: int) -> RoundAttempt:
        """Announce a new attempt, so that memory is read ahead; earlier ones become invalid."""
        with self._lock:
            number = self._attempts.get(client, 0) + 1
            self._attempts[client] = number
            attempt = RoundAttempt(client, round, number)
            self._expected[attempt] = None
            self._fetch()
        return attempt

    def cancel_expected(self) -> None:
        """Cancel all announced attempts."""
        with self._lock:
            self._expected.clear()
            self._fetched.clear()

    def _fetch(self) -> None:
        while self._expected and len(self._fetched) < self._ahead:
            attempt = next(iter(self._expected))
            del self._expected[attempt]
            stored = self._before(attempt)
            if stored is not None and stored.on_disk_only:
                self._fetched[attempt] = self._thread.submit(self._load, attempt)

    def read(self, attempt: RoundAttempt) -> Tree:
        """Return the client's memory before this round, in host memory or where it was written."""
        with self._lock:
            self._expected.pop(attempt, None)
            fetched = self._fetched.pop(attempt, None)
            self._fetch()
        if fetched is not None:
            return fetched.result()
        return self._load(attempt)

    def _load(self, attempt: RoundAttempt) -> Tree:
        stored = self._before(attempt)
        if stored is None:
            return {}
        read_from_disk = stored.on_disk_only
        try:
            tree = stored.tree
        except (OSError, ValueError) as problem:
            raise RunError(
                f"the saved state of client {attempt.client} cannot be read: {problem}. Run the "
                "same command again to resume from the last intact checkpoint"
            ) from problem
        if read_from_disk and self._device.type == "cuda":
            return pinned(tree)
        return tree

    def _before(self, attempt: RoundAttempt) -> StoredMemory | None:
        """Return the newest memory older than the round, the same again if a round is repeated."""
        latest = self._latest.get(attempt.client)
        finished = self._finished.get(attempt.client)
        if latest is None or latest.round < attempt.round:
            return latest
        if finished is not None and finished.round >= attempt.round:
            raise ValueError(
                f"round {attempt.round} is over, and the memory of client {attempt.client} before "
                "it is not kept"
            )
        return finished

    def write(self, attempt: RoundAttempt, tree: Tree) -> bool:
        """Store a memory; False, and nothing is changed, if the client has begun a new attempt."""
        if not tree and attempt.client not in self._latest:
            return True  # a client that keeps nothing costs nothing
        tier = self._choose(tree)
        placed = tree
        if tier != "device":
            placed = on_host(tree)
        # The event is recorded when the copy has arrived.
        version = StoredMemory(attempt.round, placed, event=ready(tree))
        with self._lock:
            if self._attempts.get(attempt.client) != attempt.number:
                return False
            self._latest[attempt.client] = version
        if tier == "disk":
            self._write_behind(version)
        return True

    def _choose(self, tree: Tree) -> Tier:
        with self._lock:
            if self._tier is None:
                self._tier = choose(self._wanted, self._device, nbytes(tree), self._clients)
            return self._tier

    def _write_behind(self, version: StoredMemory) -> None:
        assert self._rows is not None
        with self._lock:
            self._behind.append(self._thread.submit(version.release, self._rows))
            if len(self._behind) <= self._ahead:
                return
            oldest = self._behind.popleft()
        try:
            oldest.result()
        except OSError as problem:
            raise RunError(
                f"a client's memory could not be written to {self._rows.path}: {problem}"
            ) from problem

    def snapshot(self) -> dict[str, StoredMemory]:
        """Return all memories at the end of a round, and keep them in case the next one fails."""
        with self._lock:
            self._finished = self._latest.copy()
            return self._finished

    def latest(self, client: str) -> Tree:
        """Return the newest memory of a client; empty if it has none."""
        if client not in self._latest:
            return {}
        return self._latest[client].tree

    def close(self) -> None:
        """Wait for pending writes. Memories not written are kept for a last checkpoint."""
        self._thread.shutdown(cancel_futures=False)
