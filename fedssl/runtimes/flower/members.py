"""Which node is which client: every node is asked once who it is, before it is asked to train."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Protocol

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedssl.data.progress import Say
from fedssl.errors import RunError
from fedssl.runtimes.flower.words import HELLO, Hello, hello_in

POLL = 0.5  # seconds between looks
ANSWER_WITHIN = 3600.0  # seconds that a hello is good for: a node may have to decode its images first


class Fits(Protocol):
    """Whether a node can take part."""

    def __call__(self, hello: Hello) -> str | None:
        """Why not; None if it can."""


class Members:
    """The nodes of a run, by client. Looked through anew each round: a node that was restarted may be another to
    Flower, and is the same client to us."""

    def __init__(self, grid: Grid, fits: Fits, say: Say) -> None:
        self._grid, self._fits, self._say = grid, fits, say
        self._asked: dict[str, int] = {}  # message id -> node, while its hello is awaited
        self._known: set[int] = set()  # nodes that were asked
        self.nodes: dict[str, int] = {}  # client -> node
        self.hellos: dict[str, Hello] = {}
        self.refused: dict[int, str] = {}  # node -> why

    def look(self) -> set[int]:
        """Ask nodes not seen before, hear those that have answered; the nodes that are connected."""
        connected = set(self._grid.get_node_ids())
        self._known &= connected  # one that comes back under its old name is asked again, for it may be another now
        new = sorted(connected - self._known)
        self._known |= connected
        for node in new:
            letter = Message(RecordDict(), node, HELLO, ttl=ANSWER_WITHIN)
            if asked := next(iter(self._grid.push_messages([letter])), None):
                self._asked[asked] = node
        for answer in self._grid.pull_messages(list(self._asked)) if self._asked else ():
            node = self._asked.pop(answer.metadata.reply_to_message_id, None)
            if node is not None:
                self._hear(node, answer, connected)
        return connected

    def _hear(self, node: int, answer: Message, connected: Collection[int]) -> None:
        hello = f"Flower says: {answer.error.reason}" if answer.has_error() else hello_in(answer.content)
        reason = hello if isinstance(hello, str) else self._fault(node, hello, connected)
        if reason is not None or isinstance(hello, str):
            self.refused[node] = reason or ""
            name = "" if isinstance(hello, str) else f' that calls itself "{hello.client}"'
            self._say(f"refused a node{name}: {reason}")
            return
        self.refused.pop(node, None)
        self.nodes[hello.client], self.hellos[hello.client] = node, hello

    def _fault(self, node: int, hello: Hello, connected: Collection[int]) -> str | None:
        other = self.nodes.get(hello.client)
        if other is not None and other != node and other in connected:
            return f'another node with client-id "{hello.client}" is connected'
        return self._fits(hello)

    def join(self, expected: int, known: Collection[str], enough: int, timeout: float) -> None:
        """Wait until all who are expected have joined; for a run that goes on, `enough` of the clients it began with
        (`known`) do after the time is up."""
        end, told = time.monotonic() + timeout, -1
        while True:
            self.look()
            joined = [client for client in self.nodes if not known or client in known]
            if len(joined) >= expected:
                return
            if len(joined) != told:
                told = len(joined)
                self._say(f"{told} of {expected} clients have joined; waiting up to {timeout:g} s")
            if time.monotonic() >= end:
                break
            time.sleep(min(POLL, max(0.0, end - time.monotonic())))
        if known and len(joined) >= enough:
            self._say(f"going on without {', '.join(sorted(set(known) - set(joined)))}, until they are back")
            return
        reasons = "".join(f"; refused: {reason}" for reason in dict.fromkeys(self.refused.values()))
        raise RunError(f"only {len(joined)} of {expected} clients joined within {timeout:g} s{reasons}")
