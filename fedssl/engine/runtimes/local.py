"""The local runtime: all clients train in this process, several of them in parallel."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import LifoQueue

import torch

from fedssl.core.state.tree import Tree
from fedssl.engine.checkpoints.client_memory import ClientMemory, RoundAttempt
from fedssl.engine.runtimes.client_round import ClientRound, RunContext, Shard, run_client
from fedssl.engine.uploads.records import Reply
from fedssl.training.trainer import Trainer

QUEUED_PER_WORKER = 4  # uploads, finished or in progress


def ignore_reply(reply: Reply) -> None:
    """Do nothing when a client has finished."""


def ignore_start(client: str, trainer: Trainer) -> None:
    """Do nothing when a client begins to train."""


class LocalRuntime:
    """One thread and one resident model per worker; which worker trains a client changes no bit.

    On CUDA each worker has its own stream, on one of the devices. Uploads are moved to the first
    trainer's device, where they are merged.
    """

    def __init__(
        self,
        context: RunContext,
        shards: Mapping[str, Shard],
        trainers: Sequence[Trainer],
        memory: ClientMemory,
        on_client: Callable[[Reply], None] = ignore_reply,
        on_start: Callable[[str, Trainer], None] = ignore_start,
    ) -> None:
        """`on_start` and `on_client` are called by the threads that train."""
        self.clients = [client for client, shard in shards.items() if shard.images]
        self._context = context
        self._shards = shards
        self._memory = memory
        self._on_client = on_client
        self._on_start = on_start
        self._merge_device = trainers[0].device
        # Last in, first out: the trainer used last has captured its step.
        self._idle: LifoQueue[Trainer] = LifoQueue()
        for trainer in trainers:
            self._idle.put(trainer)
        self._workers = len(trainers)
        set_threads = partial(torch.set_num_threads, trainers[0].settings.threads)
        self._pool = ThreadPoolExecutor(self._workers, "client", initializer=set_threads)

    def exchange(
        self, round: int, clients: Sequence[str], message: Callable[[str], Tree]
    ) -> Iterator[Reply]:
        """Yield replies in the clients' order; a bounded number of uploads waits for its turn.

        Clients start in groups, the largest of each group first: otherwise a worker that took it
        last would leave the others idle.
        """
        group_size = QUEUED_PER_WORKER * self._workers
        if len(clients) > group_size:
            group_size //= 2
        pending: deque[Future[Reply]] = deque()
        try:
            for start in range(0, len(clients), group_size):
                group = clients[start : start + group_size]
                pending.extend(self._start_group(round, group, message))
                # The next group starts while this one is being finished.
                while len(pending) > group_size:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
            self._memory.cancel_expected()

    def _start_group(
        self, round: int, group: Sequence[str], message: Callable[[str], Tree]
    ) -> list[Future[Reply]]:
        """Start a group of clients, the largest first; return their futures in the given order."""
        largest_first = sorted(group, key=lambda name: self._shards[name].images, reverse=True)
        started = {}
        for client in largest_first:
            attempt = self._memory.expect(client, round)
            started[client] = self._pool.submit(self._run, attempt, message(client))
        return [started[client] for client in group]

    def _run(self, attempt: RoundAttempt, message: Tree) -> Reply:
        client_round = ClientRound(
            client=attempt.client,
            round=attempt.round,
            shard=self._shards[attempt.client],
            message=message,
            load_memory=partial(self._memory.read, attempt),
            store_memory=partial(self._memory.write, attempt),
        )
        trainer = self._idle.get()
        self._on_start(attempt.client, trainer)
        try:
            reply = run_client(self._context, client_round, trainer, self._merge_device)
        finally:
            self._idle.put(trainer)
        self._on_client(reply)
        return reply

    def close(self) -> None:
        """Wait for clients in training and end the threads; `RunContext.stop` makes that quick."""
        self._pool.shutdown(cancel_futures=True)
