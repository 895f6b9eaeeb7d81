"""The local runtime: every client in this process, some of them side by side."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import LifoQueue
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from fedssl.algorithm import Algorithm
from fedssl.client import Client
from fedssl.errors import ClientError
from fedssl.guard import Reply
from fedssl.memory import Memory, Turn
from fedssl.pixels import Pixels
from fedssl.tiers import on_device
from fedssl.train import Trainer
from fedssl.tree import Tree

NOTHING: Mapping[torch.device, Tensor] = MappingProxyType({})
WAITING = 4  # uploads for each worker, done or in the making


class Shard(NamedTuple):
    """One client's private images, and how to get their labels should a method learn from them."""

    pixels: Tensor | Pixels | Mapping[torch.device, Pixels]  # (n, C, H, W) uint8; perhaps a pool on each device
    labels: Callable[[], Tensor] | None = None

    def on(self, device: torch.device) -> Tensor | Pixels:
        return self.pixels[device] if isinstance(self.pixels, Mapping) else self.pixels

    @property
    def images(self) -> int:
        return len(next(iter(self.pixels.values())) if isinstance(self.pixels, Mapping) else self.pixels)


class Pace(NamedTuple):
    """Where a round stands in the run."""

    rate: float
    progress: float
    rounds: int = 1  # of the whole run


class LocalRuntime:
    """One thread and one resident model per worker. Which worker trains whom does not change a bit of the result.

    On CUDA a worker has a stream of its own, on one of the devices; what the server merges comes to the first.
    """

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
        public: Mapping[torch.device, Tensor] = NOTHING,
    ) -> None:
        self.clients = [client for client, shard in shards.items() if shard.images]
        self._algorithm, self._shards, self._memory = algorithm, shards, memory
        self._seed, self._pace, self._stop, self._on_client = seed, pace, stop, on_client
        self._home, self._public = trainers[0].device, public
        self._idle: LifoQueue[Trainer] = LifoQueue()  # the last used first: it has recorded its step
        for trainer in trainers:
            self._idle.put(trainer)
        threads = trainers[0].settings.threads
        self._workers = len(trainers)
        self._pool = ThreadPoolExecutor(self._workers, "client", initializer=lambda: torch.set_num_threads(threads))

    def exchange(self, round: int, home: Mapping[str, str], message: Callable[[str], Tree]) -> Iterator[Reply]:
        """Replies in the clients' order; at most WAITING uploads per worker wait for their turn.

        Of each few clients the largest start first: a worker that took it last would leave the others idle.
        """
        clients, most = list(home), WAITING * self._workers
        few = most if len(clients) <= most else most // 2
        pending: deque[Future[Reply]] = deque()
        try:
            for i in range(0, len(clients), few):
                chosen = clients[i : i + few]
                largest = sorted(chosen, key=lambda client: self._shards[client].images, reverse=True)
                started = {client: self._start(round, client, message(client)) for client in largest}
                pending.extend(started[client] for client in chosen)
                while len(pending) > few:  # the next few start while these are being finished
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
            self._memory.expect_nobody()

    def _start(self, round: int, client_id: str, message: Tree) -> Future[Reply]:
        return self._pool.submit(self._one, self._memory.expect(client_id, round), message)

    def _one(self, turn: Turn, message: Tree) -> Reply:
        trainer = self._idle.get()
        try:
            with trainer.active():
                client, message = self._enter(turn, message, trainer)
                upload, memory = self._algorithm.client(client, message)
                self._memory.write(turn, memory)
            metrics = client.metrics[0] if client.metrics else None
            sent = on_device(upload, self._home)
            reply = Reply(turn.client, client.count, sent, metrics, round=turn.round, notes=client.notes)
        except ClientError as problem:
            reply = Reply(turn.client, 0, None, None, str(problem))
        except torch.OutOfMemoryError:
            reply = Reply(turn.client, 0, None, None, "the device is out of memory; try a smaller train.batch")
        finally:
            self._idle.put(trainer)
        self._on_client(reply)
        return reply

    def _enter(self, turn: Turn, message: Tree, trainer: Trainer) -> tuple[Client, Tree]:
        """All that a client's round needs, on its trainer's device: what it remembers, and the message."""
        shard, pace = self._shards[turn.client], self._pace(turn.round)
        memory = on_device(self._memory.read(turn), trainer.device)
        client = Client(
            turn.client,
            shard.on(trainer.device),
            shard.labels,
            memory,
            trainer,
            self._seed,
            turn.round,
            pace.rate,
            pace.progress,
            pace.rounds,
            self._public.get(trainer.device),
            self._stop,
        )
        return client, on_device(message, trainer.device)

    def close(self) -> None:
        """Wait for clients still training (a set `stop` ends them within a step) and let the threads go."""
        self._pool.shutdown(cancel_futures=True)
