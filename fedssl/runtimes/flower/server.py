"""The server's half of the runtime: a round's messages to nodes, and their replies in the clients' order."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from flwr.app import Message
from flwr.serverapp import Grid

from fedssl.guard import Reply
from fedssl.runtimes.flower.codec import Encoder, decode
from fedssl.runtimes.flower.members import POLL, Members
from fedssl.runtimes.flower.words import KEEP, TRAIN, Task, put_task, reply_in
from fedssl.tree import Tree, to_device


class Asked(NamedTuple):
    """A question on its way, and the id under which Flower will have the answer."""

    task: Task
    id: str


class FlowerRuntime:
    """Carries messages over Flower. A round ends when every client has answered or its time is up.

    Until as many have answered as make a quorum, uploads are held here; from then on they stay where Flower has them
    until their turn comes, so that one at a time is in this process. If too few answer in time, the round fails: all
    its replies are dropped, and the sites stay as they were.
    """

    def __init__(
        self,
        grid: Grid,
        members: Members,
        clients: Sequence[str],
        task: Callable[[str, int], Task],
        timeout: float,
        quorum: float,
        device: torch.device,
        on_client: Callable[[Reply], None] = lambda reply: None,
    ) -> None:
        """`task` makes the task of a client in a round; `timeout` in seconds, `quorum` a share of those asked."""
        self.clients = list(clients)
        self._grid, self._members, self._task = grid, members, task
        self._timeout, self._quorum, self._device, self._on_client = timeout, quorum, device, on_client

    def exchange(self, round: int, home: Mapping[str, str], message: Callable[[str], Tree]) -> Iterator[Reply]:
        return self._carry(TRAIN, round, list(home), message, math.ceil(self._quorum * len(home)))

    def keep(self, round: int, message: Callable[[str], Tree]) -> Iterator[Reply]:
        """After the last round: what every client needs to make the model of its own that it keeps."""
        return self._carry(KEEP, round, self.clients, message, 0)

    def _carry(
        self, kind: str, round: int, home: Sequence[str], message: Callable[[str], Tree], least: int
    ) -> Iterator[Reply]:
        """Messages to clients and their replies in order, if at least so many are sound."""
        end = time.monotonic() + self._timeout
        heard: dict[str, Reply] = {}
        asked = self._ask(kind, round, home, message, heard)
        sound = 0
        while asked and sound < least:
            late = time.monotonic() >= end
            for reply in self._pull(list(asked.values())):
                del asked[reply.client]
                heard[reply.client] = reply
                sound += reply.upload is not None
            if late:
                break
            if asked and sound < least:
                time.sleep(POLL)
        if sound < least:
            yield from self._failed(home, heard, f"only {sound} of {len(home)} clients have answered; {least} must")
            return
        for client in home:
            yield heard.pop(client) if client in heard else self._await(asked.pop(client), end)

    def _ask(
        self, kind: str, round: int, clients: Sequence[str], message: Callable[[str], Tree], heard: dict[str, Reply]
    ) -> dict[str, Asked]:
        """Questions sent, by client. Who is not there has been `heard` already."""
        connected, encode, asked = self._members.look(), Encoder(), {}
        for client in clients:
            tree, task = message(client), self._task(client, round)
            node = self._members.nodes.get(client)
            sent: str | None = None
            if node in connected:
                content = put_task(encode(tree), task)
                # A reply that comes later than this is Flower's to throw away.
                letter = Message(content, node, kind, ttl=self._timeout + 60, group_id=str(round))
                sent = next(iter(self._grid.push_messages([letter])), None)  # none: Flower would not take it
            if sent:
                asked[client] = Asked(task, sent)
            else:
                why = "the message could not be sent" if node in connected else "its node is not connected"
                heard[client] = self._told(Reply(client, 0, None, None, why))
        return asked

    def _pull(self, asked: Sequence[Asked]) -> list[Reply]:
        """Answers that are there, each for one question."""
        tasks = {each.id: each.task for each in asked}
        replies = []
        for answer in self._grid.pull_messages(list(tasks)):
            task = tasks.pop(answer.metadata.reply_to_message_id, None)  # a second answer finds no question any more
            if task is not None:
                replies.append(self._told(self._read(answer, task)))
        return replies

    def _read(self, answer: Message, task: Task) -> Reply:
        if answer.has_error():
            return Reply(task.client, 0, None, None, f"Flower says: {answer.error.reason}")
        try:
            reply = reply_in(answer.content, task)
            if reply.error is not None:
                return reply
            return reply._replace(upload=to_device(decode(answer.content), self._device))
        except Exception as problem:  # a stranger may have written anything
            return Reply(task.client, 0, None, None, str(problem) or type(problem).__name__)

    def _await(self, asked: Asked, end: float) -> Reply:
        """Looks at least once, also when time is up."""
        while True:
            late = time.monotonic() >= end
            if replies := self._pull([asked]):
                return replies[0]
            if late:
                reason = f"has not answered within {self._timeout:g} s"
                return self._told(Reply(asked.task.client, 0, None, None, reason))
            time.sleep(POLL)

    def _failed(self, home: Sequence[str], heard: Mapping[str, Reply], why: str) -> Iterator[Reply]:
        """Nobody's upload counts. Who sent one has moved on, and the log says so."""
        silent = f"has not answered within {self._timeout:g} s"
        for client in home:
            reply = heard.get(client) or Reply(client, 0, None, None, silent)
            yield reply if reply.error else reply._replace(error=why)

    def _told(self, reply: Reply) -> Reply:
        self._on_client(reply)
        return reply
