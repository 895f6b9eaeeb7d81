"""The local runtime: every client in this process, some of them side by side."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import NamedTuple

import torch
from torch import Tensor

from fedssl.algorithm import Algorithm
from fedssl.client import Client
from fedssl.errors import ClientError
from fedssl.guard import Reply
from fedssl.pixels import Pixels
from fedssl.store import Memory
from fedssl.train import Trainer
from fedssl.tree import Tree


class Shard(NamedTuple):
    """One client's private images, and how to get their labels should a method learn from them."""

    pixels: Tensor | Pixels  # (n, C, H, W) uint8
    labels: Callable[[], Tensor] | None = None


class Pace(NamedTuple):
    """Where a round stands in the run."""

    rate: float
    progress: float


class LocalRuntime:
    """One thread and one resident model per worker. Which worker trains whom does not change a bit of the result."""

    def __init__(
        self,
        algorithm: Algorithm,
        shards: Mapping[str, Shard],
        trainers: Sequence[Trainer],
        memory: Memory,
        seed: int,
        pace: Callable[[int], Pace],
        stop: threading.Event,
        on_client: Callable[[Reply], None] = lambda reply: None,
    ) -> None:
        self.clients = [client for client, shard in shards.items() if len(shard.pixels)]
        self._algorithm, self._shards, self._memory = algorithm, shards, memory
        self._seed, self._pace, self._stop, self._on_client = seed, pace, stop, on_client
        self._idle: SimpleQueue[Trainer] = SimpleQueue()
        for trainer in trainers:
            self._idle.put(trainer)
        threads = trainers[0].settings.threads
        self._workers = len(trainers)
        self._pool = ThreadPoolExecutor(self._workers, "client", initializer=lambda: torch.set_num_threads(threads))

    def exchange(self, round: int, home: Mapping[str, str], message: Callable[[str], Tree]) -> Iterator[Reply]:
        """Replies in the clients' order; at most one upload per worker waits for its turn."""
        pending: deque[Future[Reply]] = deque()
        try:
            for client in home:
                pending.append(self._pool.submit(self._one, round, client, message(client)))
                if len(pending) > self._workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()

    def _one(self, round: int, client_id: str, message: Tree) -> Reply:
        trainer = self._idle.get()
        try:
            client = self._client(round, client_id, trainer)
            upload, memory = self._algorithm.client(client, message)
            self._memory.write(client_id, round, memory)
            reply = Reply(client_id, client.count, upload, client.metrics[-1] if client.metrics else None)
        except ClientError as problem:
            reply = Reply(client_id, 0, None, None, str(problem))
        except torch.OutOfMemoryError:
            reply = Reply(client_id, 0, None, None, "the device is out of memory; try a smaller train.batch")
        finally:
            self._idle.put(trainer)
        self._on_client(reply)
        return reply

    def _client(self, round: int, client_id: str, trainer: Trainer) -> Client:
        shard, pace = self._shards[client_id], self._pace(round)
        return Client(
            client_id,
            shard.pixels,
            shard.labels,
            self._memory.read(client_id),
            trainer,
            self._seed,
            round,
            pace.rate,
            pace.progress,
            self._stop,
        )

    def close(self) -> None:
        """Wait for clients still training (a set `stop` ends them within a step) and let the threads go."""
        self._pool.shutdown(cancel_futures=True)
