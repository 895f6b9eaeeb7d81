"""Federations with secure aggregation, and the same sums computed in the clear."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from fake_grid import FakeGrid, Handler, serialized
from flwr.app import Error, Message

from fedssl.core.state.tree import Tree
from fedssl.engine.uploads.records import Reply
from fedssl.engine.uploads.upload_weights import largest_count
from fedssl.flower import server_run
from fedssl.flower.runtime import FlowerRuntime
from fedssl.flower.secure_aggregation.masks import Words
from fedssl.flower.secure_aggregation.roster import SecureRoster
from fedssl.flower.secure_aggregation.vector import VectorLayout
from fedssl.training.trainer import Metrics


class ClearSums(FlowerRuntime):
    """The runtime of plain uploads, which sums them in fixed point as SecureRuntime does."""

    def exchange(
        self, round: int, clients: Sequence[str], message: Callable[[str], Tree]
    ) -> Iterator[Reply]:
        """Yield the mean as the reply of each client whose upload is valid."""
        replies = list(super().exchange(round, clients, message))
        valid = [reply for reply in replies if reply.error is None]
        layout = VectorLayout.of(self._schema)
        counts = list(self.declared_images().values())
        limit = largest_count(counts, 0.5)
        roster = SecureRoster((), 0, 0, 1.0, limit if limit < np.inf else None)
        total_weight = sum(roster.weight(count, uniform=False) for count in counts)
        total = np.zeros(layout.words, np.uint64)
        share = 0.0
        for reply in valid:
            weight = roster.weight(int(reply.images), uniform=False) / total_weight
            assert reply.upload is not None
            assert reply.metrics is not None
            total += layout.encode(reply.upload, reply.metrics, weight)
            share += weight
        models, _ = layout.decode(total, share)
        for reply in replies:
            yield reply if reply.error else reply._replace(upload=models)


def sum_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let servers without secure aggregation compute the same fixed-point sums."""
    monkeypatch.setattr(server_run, "FlowerRuntime", ClearSums)


def failing(handler: Handler, *kinds: str, round: int | None = None) -> Handler:
    """Return a node whose process fails when it gets messages of some types."""

    def fail(message: Message) -> Message | None:
        metadata = message.metadata
        if metadata.message_type in kinds and round in (None, int(metadata.group_id or -1)):
            return Message(Error(3, "the process has failed"), reply_to=message)
        return handler(message)

    return fail


class Recording:
    """Records the objects that a server receives, and the vectors that clients are to mask."""

    def __init__(self, grid: FakeGrid, monkeypatch: pytest.MonkeyPatch) -> None:
        self.received: list[bytes] = []  # every object of every answer
        self.clear: list[Words] = []  # vectors without masks
        self.uploads: list[Tree] = []
        self.metrics: list[Metrics] = []
        pull = grid.pull_messages

        def pull_messages(message_ids: Iterable[str]) -> list[Message]:
            answers = pull(message_ids)
            for answer in answers:
                self.received += serialized(answer).values()
            return answers

        monkeypatch.setattr(grid, "pull_messages", pull_messages)
        encode = VectorLayout.encode

        @functools.wraps(encode)
        def recorded(layout: VectorLayout, upload: Tree, metrics: Metrics, share: float) -> Words:
            words = encode(layout, upload, metrics, share)
            self.clear.append(words.copy())
            self.uploads.append(upload)
            self.metrics.append(metrics)
            return words

        monkeypatch.setattr(VectorLayout, "encode", recorded)

    def contains(self, data: bytes) -> bool:
        """True if the server has received these bytes."""
        return any(data in content for content in self.received)

    def masked(self, words: int) -> list[Words]:
        """Return the vectors that the server has received."""
        vectors: list[Any] = []
        for content in self.received:
            if len(content) >= 8 * words:
                vectors.append(np.frombuffer(content[-8 * words :], np.uint64))
        return vectors
