"""The server's half of the runtime: a round's messages to nodes, and their replies in the clients' order."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from flwr.app import Message
from flwr.serverapp import Grid

from fedssl.algorithm import Spec
from fedssl.guard import Reply, unsound
from fedssl.runtimes.flower.codec import Encoder, decode
from fedssl.runtimes.flower.members import POLL, Members, answer_to
from fedssl.runtimes.flower.words import KEEP, TRAIN, Task, put_task, reply_in
from fedssl.tree import Tree, to_device


class Asked(NamedTuple):
    """A question on its way, the id under which Flower will have the answer, and what that must look like."""

    task: Task
    id: str
    wire: Mapping[str, Spec]


class FlowerRuntime:
    """Carries messages over Flower. A round ends when every client has answered or its time is up.

    A round begins when as many of its clients are connected as must answer. Until these have, with sound uploads,
    uploads are held here; from then on they stay where Flower has them until their turn comes, so that one at a time is
    in this process. If too few answer in time, the round fails: all its replies are dropped, and the sites stay as they
    were.
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
        device: torch.device,
        on_client: Callable[[Reply], None] = lambda reply: None,
    ) -> None:
        """`task` makes the task of a client in a round, `wire` is what its upload looks like; `timeout` in seconds,
        `quorum` a share of those asked."""
        self.clients = list(clients)
        self._grid, self._members, self._task, self._wire = grid, members, task, wire
        self._timeout, self._quorum, self._device, self._on_client = timeout, quorum, device, on_client
        self._images: dict[str, int] = {}  # that a client said it has, when it was first asked for something

    def exchange(self, round: int, home: Mapping[str, str], message: Callable[[str], Tree]) -> Iterator[Reply]:
        least = math.ceil(self._quorum * len(home))
        self._members.wait(home, least, self._timeout)
        return self._carry(TRAIN, round, list(home), message, least, self._wire)

    def declared_images(self) -> Mapping[str, int]:
        """The number of images that each client stated before it was first asked to train."""
        return self._images

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
        """Messages to clients and their replies in order, if at least so many are sound."""
        end = time.monotonic() + self._timeout
        heard: dict[str, Reply] = {}
        asked = self._ask(kind, round, home, message, wire, heard)
        sound = 0
        while sound < least <= sound + len(asked):  # a quorum is not there yet, and can still be
            late = time.monotonic() >= end
            for client, question in list(asked.items()):
                reply = self._answer(question)
                if reply is not None:
                    del asked[client]
                    heard[client] = reply
                    sound += reply.error is None
            if late:
                break
            if sound < least <= sound + len(asked):
                self._pause()
        if sound < least:
            late = time.monotonic() >= end
            silent = f"has not answered within {self._timeout:g} s" if late else "was not waited for any longer"
            why = f"only {sound} of {len(home)} clients have sent a sound upload; {least} must"
            yield from self._failed(home, heard, why, silent)
            return
        for client in home:
            yield heard.pop(client) if client in heard else self._await(asked.pop(client), end)

    def _ask(
        self,
        kind: str,
        round: int,
        clients: Sequence[str],
        message: Callable[[str], Tree],
        wire: Mapping[str, Spec],
        heard: dict[str, Reply],
    ) -> dict[str, Asked]:
        """Questions sent, by client. Who is not there has been `heard` already."""
        self._members.look()
        encode, asked, until = Encoder(), {}, time.time() + self._timeout
        for client in clients:
            tree, task = message(client), self._task(client, round)._replace(until=until)
            node = self._members.nodes.get(client)
            sent: str | None = None
            if node is not None:
                self._images.setdefault(client, self._members.hellos[client].clients[client])
                content = put_task(encode(tree), task)
                # Flower throws away what comes later. An answer in time may have to wait for its turn to be merged.
                letter = Message(content, node, kind, ttl=2 * self._timeout + 600, group_id=str(round))
                sent = next(iter(self._grid.push_messages([letter])), None)  # none: Flower would not take it
            if sent:
                asked[client] = Asked(task, sent, wire)
            else:
                why = "its node is not connected" if node is None else "the message could not be sent"
                heard[client] = self._told(Reply(client, 0, None, None, why))
        return asked

    def _answer(self, asked: Asked) -> Reply | None:
        """What came back, with an error if it is not sound; None if nothing has yet."""
        answer = answer_to(self._grid, asked.id)
        if answer is None:
            return None
        if isinstance(answer, str):
            return self._told(Reply(asked.task.client, 0, None, None, answer))
        try:
            reply = reply_in(answer.content, asked.task)
            if reply.error is None:
                reply = reply._replace(upload=to_device(decode(answer.content), self._device))
                reply = reply._replace(error=unsound(reply, asked.wire) or self._miscounted(reply))
        except Exception as problem:  # a stranger may have written anything
            reply = Reply(asked.task.client, 0, None, None, str(problem) or type(problem).__name__)
        return self._told(reply)

    def _miscounted(self, reply: Reply) -> str | None:
        """A client's weight in the mean is its number of images, settled before anybody trains."""
        said = self._images[reply.client]
        return None if reply.images == said else f"claims {reply.images} images, and said that it has {said}"

    def _await(self, asked: Asked, end: float) -> Reply:
        """Looks at least once, also when time is up."""
        while True:
            late = time.monotonic() >= end
            if (reply := self._answer(asked)) is not None:
                return reply
            if late:
                reason = f"has not answered within {self._timeout:g} s"
                return self._told(Reply(asked.task.client, 0, None, None, reason))
            self._pause()

    def _pause(self) -> None:
        """Meanwhile, nodes that come back say who they are, so that the next round has them."""
        self._members.look()
        time.sleep(POLL)

    def _failed(self, home: Sequence[str], heard: Mapping[str, Reply], why: str, silent: str) -> Iterator[Reply]:
        """Nobody's upload counts. Who sent one has moved on, and the log says so."""
        for client in home:
            reply = heard.get(client) or Reply(client, 0, None, None, silent)
            yield reply if reply.error else reply._replace(error=why)

    def _told(self, reply: Reply) -> Reply:
        self._on_client(reply)
        return reply
