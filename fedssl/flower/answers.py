"""Pull the answers of nodes one at a time, and send notices to their operators."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid

from fedssl.flower.messages import NOTICE, pack_notice

POLL = 0.5  # seconds between polls
FLUSH_TIMEOUT = 30.0  # seconds to wait for notices: a node starts a process for each
# Seconds until a hello or a notice expires: a node may have to decode its images first.
QUERY_TTL = 3600.0


class FailedAnswer(NamedTuple):
    """The reason why a message has no readable answer."""

    reason: str
    by_flower: bool  # the node or its process failed; False: the answer came but is unreadable


def push_message(grid: Grid, message: Message) -> str | None:
    """Send a message and return its id; None or "" if Flower did not accept it."""
    return next(iter(grid.push_messages([message])), None)


def pull_answer(grid: Grid, message_id: str) -> Message | FailedAnswer | None:
    """Return the answer to a message, or why it is unreadable; None if there is no answer yet.

    Pulled one at a time: if Flower fails on one node's answer, no other answer is lost.
    """
    try:
        answer = _find_answer(grid, message_id)
    except Exception as problem:  # a node may have written anything
        reason = f"its answer cannot be read ({type(problem).__name__})"
        return FailedAnswer(reason, by_flower=False)
    if answer is not None and answer.has_error():
        return FailedAnswer(f"Flower reports: {answer.error.reason}", by_flower=True)
    return answer


def _find_answer(grid: Grid, message_id: str) -> Message | None:
    for answer in grid.pull_messages([message_id]):
        if answer.metadata.reply_to_message_id == message_id:
            return answer
    return None


class Notices:
    """Messages to the operators of nodes; a node writes them to its own log."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._unconfirmed: dict[str, int] = {}  # id of a notice -> its node

    def send(self, node: int, text: str) -> None:
        """Send a notice to a node."""
        notice = Message(pack_notice(text), node, NOTICE, ttl=QUERY_TTL)
        message_id = push_message(self._grid, notice)
        if message_id:
            self._unconfirmed[message_id] = node

    def collect(self, connected: Collection[int]) -> None:
        """Remove notices that were received, and those of nodes that have disconnected."""
        for message_id, node in list(self._unconfirmed.items()):
            if node not in connected or pull_answer(self._grid, message_id) is not None:
                del self._unconfirmed[message_id]

    def flush(self, timeout: float = FLUSH_TIMEOUT) -> None:
        """Wait until all notices are received: Flower delivers none after this process ends."""
        end = time.monotonic() + timeout
        while self._unconfirmed and time.monotonic() < end:
            self.collect([node.node_id for node in self._grid.get_nodes()])
            if self._unconfirmed:
                time.sleep(POLL)
