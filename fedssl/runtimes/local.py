"""The local runtime: every client in this process, some of them side by side."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import LifoQueue

import torch
from torch import Tensor

from fedssl.algorithm import Algorithm
from fedssl.guard import Reply
from fedssl.memory import Memory, Turn
from fedssl.runtimes.attend import NOTHING, Pace, Shard, Work, attend
from fedssl.train import Trainer
from fedssl.tree import Tree

WAITING = 4  # uploads for each worker, done or in the making


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
        self._work = Work(algorithm, seed, pace, public, stop)
        self._shards, self._memory, self._on_client = shards, memory, on_client
        self._home = trainers[0].device
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

        def recall() -> Tree:
            return self._memory.read(turn)

        def remember(memory: Tree) -> None:
            self._memory.write(turn, memory)

        try:
            shard = self._shards[turn.client]
            reply = attend(self._work, turn.client, turn.round, shard, trainer, message, recall, remember, self._home)
        finally:
            self._idle.put(trainer)
        self._on_client(reply)
        return reply

    def close(self) -> None:
        """Wait for clients still training (a set `stop` ends them within a step) and let the threads go."""
        self._pool.shutdown(cancel_futures=True)
