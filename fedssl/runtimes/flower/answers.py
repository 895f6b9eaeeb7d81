"""Answers of nodes, pulled one at a time, and notices to their operators."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid

from fedssl.runtimes.flower.words import NOTICE, put_notice

POLL = 0.5  # seconds between looks
FLUSH = 30.0  # seconds to wait for notices at the end: a node starts a process for each
ANSWER_WITHIN = 3600.0  # seconds that a hello is good for: a node may have to decode its images first


class Failed(NamedTuple):
    """Why there is no answer."""

    reason: str
    by_flower: bool  # the node or its process failed; otherwise the answer came and cannot be read


def answer_to(grid: Grid, id: str) -> Message | Failed | None:
    """Return the answer to a message, or why it cannot be read; None if there is none yet.

    One at a time: if Flower fails on what a node has written, no other node's answer is lost with it.
    """
    try:
        answer = next((found for found in grid.pull_messages([id]) if found.metadata.reply_to_message_id == id), None)
    except Exception as problem:  # a node may have written anything
        return Failed(f"its answer cannot be read ({type(problem).__name__})", by_flower=False)
    if answer is not None and answer.has_error():
        return Failed(f"Flower says: {answer.error.reason}", by_flower=True)
    return answer


class Notices:
    """Messages to operators of nodes, which a node writes to its own log."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._sent: dict[str, int] = {}  # id of a notice that is not confirmed yet -> its node

    def send(self, node: int, text: str) -> None:
        letter = Message(put_notice(text), node, NOTICE, ttl=ANSWER_WITHIN)
        sent = next(iter(self._grid.push_messages([letter])), None)
        if sent:
            self._sent[sent] = node

    def collect(self, connected: Collection[int]) -> None:
        """Forget notices that were received, and those of nodes that have gone."""
        for id, node in list(self._sent.items()):
            if node not in connected or answer_to(self._grid, id) is not None:
                del self._sent[id]

    def flush(self, timeout: float = FLUSH) -> None:
        """Wait until all notices are received: Flower delivers nothing once the server's process has ended."""
        end = time.monotonic() + timeout
        while self._sent and time.monotonic() < end:
            self.collect([node.node_id for node in self._grid.get_nodes()])
            if self._sent:
                time.sleep(POLL)
