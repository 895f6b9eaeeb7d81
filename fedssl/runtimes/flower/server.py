"""The server's half of the runtime: a round's messages to nodes, and their replies in the clients' order."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from flwr.app import Message
from flwr.serverapp import Grid

from fedssl.algorithm import Spec
from fedssl.federate import Round
from fedssl.guard import Reply, unsound
from fedssl.runtimes.flower.answers import Failed, answer_to
from fedssl.runtimes.flower.codec import Encoder, decode
from fedssl.runtimes.flower.members import POLL, Members
from fedssl.runtimes.flower.words import KEEP, TRAIN, Task, put_task, reply_in
from fedssl.tree import Tree, to_device


class Asked(NamedTuple):
    """A question on its way, the id under which Flower will have the answer, and what that must look like."""

    task: Task
    id: str
    wire: Mapping[str, Spec]


@dataclass
class Tally:
    """Counts how many valid uploads a round can still get."""

    possible: int
    least: int  # that it needs

    def count(self, reply: Reply) -> Reply:
        self.possible -= reply.error is not None
        return reply


class FlowerRuntime:
    """Carries messages over Flower. A round ends when every client has answered or its time is up.

    A round begins when as many of its clients are connected as must answer. Replies are pulled from the SuperLink one
    at a time, each when its client's turn comes, so the memory of this process does not depend on the number of
    clients. Whether there were enough valid uploads is known after the last reply: the caller discards what it has
    merged if there were fewer than `required` returns.
    """

    def __init__(
        self,
        grid: Grid,
        members: Members,
        clients: Sequence[str],
        task: Callable[[str, int], Task],
        wire: Mapping[str, Spec],
        timeout: float,
        quorum: float,
        min_uploads: int,
        device: torch.device,
        on_client: Callable[[Reply], None] = lambda reply: None,
    ) -> None:
        """`task` makes the task of a client in a round, `wire` is what its upload looks like; `timeout` in seconds,
        `quorum` a share of those asked; a round waits for `min_uploads` clients where that is more."""
        self.clients = list(clients)
        self._grid, self._members, self._task, self._wire = grid, members, task, wire
        self._timeout, self._device, self._on_client = timeout, device, on_client
        self._quorum = quorum
        self._min_uploads = min_uploads
        self._declared: dict[str, int] = {}  # images that a client stated in its hello, when it was first asked
        self._unsent: set[str] = set()  # clients without an upload in this round: an error, or no answer

    def required(self, asked: int) -> int:
        """Return how many of `asked` clients must send a valid upload."""
        return math.ceil(self._quorum * asked)

    def exchange(self, round: int, home: Mapping[str, str], message: Callable[[str], Tree]) -> Iterator[Reply]:
        least = max(self.required(len(home)), min(self._min_uploads, len(home)))
        self._members.wait(home, least, self._timeout)
        self._unsent.clear()
        return self._carry(TRAIN, round, list(home), message, least, self._wire)

    def declared_images(self) -> Mapping[str, int]:
        """The number of images that each client stated before it was first asked to train."""
        return self._declared

    def keep(self, round: int, clients: Sequence[str], message: Callable[[str], Tree]) -> Iterator[Reply]:
        """After the last round: what clients need to make the models of their own that they keep."""
        return self._carry(KEEP, round, clients, message, 0, {})

    def _carry(
        self,
        kind: str,
        round: int,
        home: Sequence[str],
        message: Callable[[str], Tree],
        least: int,
        wire: Mapping[str, Spec],
    ) -> Iterator[Reply]:
        """Send messages to clients and yield their replies in the order of `home`.

        Once fewer than `least` valid uploads are possible, takes the replies that are there and waits for no more.
        """
        end = time.monotonic() + self._timeout
        unreachable: dict[str, Reply] = {}
        asked = self._ask(kind, round, home, message, wire, unreachable)
        tally = Tally(len(asked), least)
        for client in home:
            # No name holds an upload while the next one is pulled.
            if client in unreachable:
                yield unreachable.pop(client)
            else:
                yield tally.count(self._await(asked.pop(client), end, tally))

    def _ask(
        self,
        kind: str,
        round: int,
        clients: Sequence[str],
        message: Callable[[str], Tree],
        wire: Mapping[str, Spec],
        unreachable: dict[str, Reply],
    ) -> dict[str, Asked]:
        """Return the questions sent, by client, and put a reply for each client without one in `unreachable`."""
        self._members.look()
        encode, asked, until = Encoder(), {}, time.time() + self._timeout
        for client in clients:
            tree, task = message(client), self._task(client, round)._replace(until=until)
            node = self._members.nodes.get(client)
            sent: str | None = None
            if node is not None:
                self._declared.setdefault(client, self._members.hellos[client].clients[client])
                content = put_task(encode(tree), task)
                # Flower throws away what comes later. An answer in time may have to wait for its turn to be merged.
                letter = Message(content, node, kind, ttl=2 * self._timeout + 600, group_id=str(round))
                sent = next(iter(self._grid.push_messages([letter])), None)  # none: Flower would not take it
            if sent:
                asked[client] = Asked(task, sent, wire)
            else:
                why = "its node is not connected" if node is None else "the message could not be sent"
                unreachable[client] = self._missing(client, why)
        return asked

    def _answer(self, asked: Asked) -> Reply | None:
        """What came back, with an error if it is not sound; None if nothing has yet."""
        answer = answer_to(self._grid, asked.id)
        if answer is None:
            return None
        if isinstance(answer, Failed):
            if answer.by_flower:
                self._unsent.add(asked.task.client)
            return self._told(Reply(asked.task.client, 0, None, None, answer.reason))
        try:
            reply = reply_in(answer.content, asked.task)
            if reply.error is not None:
                self._unsent.add(reply.client)
            else:
                reply = reply._replace(upload=to_device(decode(answer.content), self._device))
                reply = reply._replace(error=unsound(reply, asked.wire))
        except Exception as problem:  # a stranger may have written anything
            reply = Reply(asked.task.client, 0, None, None, str(problem) or type(problem).__name__)
        return self._told(reply)

    def _await(self, asked: Asked, end: float, tally: Tally) -> Reply:
        """Wait for one reply until `end`, or not at all if the round has failed already. Looks at least once."""
        while True:
            late = time.monotonic() >= end
            reply = self._answer(asked)
            if reply is not None:
                return reply
            if late:
                return self._missing(asked.task.client, f"has not answered within {self._timeout:g} s")
            if tally.possible < tally.least:
                reason = f"not waited for: the round cannot get the {tally.least} valid uploads it needs"
                return self._missing(asked.task.client, reason)
            self._pause()

    def _missing(self, client: str, reason: str) -> Reply:
        """Make the reply of a client that has sent nothing."""
        self._unsent.add(client)
        return self._told(Reply(client, 0, None, None, reason))

    def finished(self, round: Round) -> None:
        """Send each client whose upload was dropped the reason. Other reasons come from the client itself."""
        for report in round.reports:
            node = self._members.nodes.get(report.client)
            if report.dropped and report.client not in self._unsent and node is not None:
                text = f'round {round.number + 1}: the upload of "{report.client}" was dropped: {report.dropped}'
                self._members.notices.send(node, text)

    def _pause(self) -> None:
        """Meanwhile, nodes that come back say who they are, so that the next round has them."""
        self._members.look()
        time.sleep(POLL)

    def _told(self, reply: Reply) -> Reply:
        self._on_client(reply)
        return reply
