"""The server's half of the runtime: send a round's messages to nodes and yield their replies."""

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
from fedssl.core.state.tree import Tree, to_device
from fedssl.engine.federate import Round
from fedssl.engine.uploads.guard import reply_error
from fedssl.engine.uploads.records import Reply
from fedssl.flower.answers import FailedAnswer, pull_answer, push_message
from fedssl.flower.codec import Encoder, decode
from fedssl.flower.messages import KEEP, TRAIN, RoundTask, pack_task, unpack_reply
from fedssl.flower.roster import POLL, Roster

TTL_MARGIN = 600  # seconds: an answer in time may have to wait for its turn to be merged


@dataclass(frozen=True)
class RoundLimits:
    """How long a round waits, and for how many clients."""

    timeout: float  # seconds
    quorum: float  # share of the clients asked that must send a valid upload
    min_uploads: int  # clients that a round waits for where that is more than the quorum


class Request(NamedTuple):
    """The messages of one round to its clients."""

    kind: str  # Flower's message type
    round: int
    clients: Sequence[str]
    message: Callable[[str], Tree]  # client -> the tree to send to it
    schema: Mapping[str, Spec]  # of the uploads


class Pending(NamedTuple):
    """A task that was sent, and the id of its message."""

    task: RoundTask
    message_id: str


@dataclass
class UploadCount:
    """How many valid uploads a round can still get, and how many it needs."""

    possible: int
    required: int

    def add(self, reply: Reply) -> Reply:
        """Count a reply and return it."""
        if reply.error is not None:
            self.possible -= 1
        return reply


class FlowerRuntime:
    """The runtime on Flower. A round ends when every client has answered or at its deadline.

    A round begins when as many of its clients are connected as must answer. Replies are pulled from
    the SuperLink one at a time, each when its client's turn comes, so the memory of this process
    does not depend on the number of clients. Whether there were enough valid uploads is known after
    the last reply: the caller discards the merged model if there were fewer than `required`
    returns.
    """

    def __init__(
        self,
        grid: Grid,
        roster: Roster,
        clients: Sequence[str],
        *,
        make_task: Callable[[str, int], RoundTask],
        schema: Mapping[str, Spec],
        limits: RoundLimits,
        device: torch.device,
        on_client: Callable[[Reply], None] = lambda reply: None,
        on_sent: Callable[[str], None] = lambda client: None,
    ) -> None:
        """`make_task` returns the task of a client in a round; `schema` describes an upload.

        `on_sent` is called when a task was sent to a client, `on_client` with its reply.
        """
        self.clients = list(clients)
        self._grid = grid
        self._roster = roster
        self._make_task = make_task
        self._schema = schema
        self._limits = limits
        self._device = device
        self._on_client = on_client
        self._on_sent = on_sent
        # client -> images that it stated in its hello when it was first asked
        self._declared: dict[str, int] = {}
        # clients without an upload in this round: they sent an error or no answer
        self._without_upload: set[str] = set()

    def required(self, asked: int) -> int:
        """Return how many of `asked` clients must send a valid upload."""
        return math.ceil(self._limits.quorum * asked)

    def exchange(
        self, round: int, clients: Sequence[str], message: Callable[[str], Tree]
    ) -> Iterator[Reply]:
        """Send a round's messages and return the replies in the order of `clients`."""
        asked = len(clients)
        required = max(self.required(asked), min(self._limits.min_uploads, asked))
        self._roster.wait(clients, required, self._limits.timeout)
        self._without_upload.clear()
        return self._send_and_await(
            Request(TRAIN, round, list(clients), message, self._schema), required
        )

    def declared_images(self) -> Mapping[str, int]:
        """Return the number of images that each client stated before its first round."""
        return self._declared

    def request_own_models(
        self, round: int, clients: Sequence[str], message: Callable[[str], Tree]
    ) -> Iterator[Reply]:
        """Ask clients, after the last round, to make and store their own models."""
        return self._send_and_await(Request(KEEP, round, clients, message, schema={}), required=0)

    def _send_and_await(self, request: Request, required: int) -> Iterator[Reply]:
        """Send messages to clients and yield their replies in the clients' order.

        Once fewer than `required` valid uploads are possible, take the replies that have arrived
        and wait for no more.
        """
        end = time.monotonic() + self._limits.timeout
        unreachable: dict[str, Reply] = {}
        pending = self._send(request, unreachable)
        uploads = UploadCount(len(pending), required)
        for client in request.clients:
            # No variable holds an upload while the next one is pulled.
            if client in unreachable:
                yield unreachable.pop(client)
            else:
                yield uploads.add(self._await(pending.pop(client), request.schema, end, uploads))

    def _send(self, request: Request, unreachable: dict[str, Reply]) -> dict[str, Pending]:
        """Return the tasks sent, by client; put a reply for each other client in `unreachable`."""
        self._roster.refresh()
        encode = Encoder()
        pending: dict[str, Pending] = {}
        until = time.time() + self._limits.timeout
        for client in request.clients:
            tree = request.message(client)
            task = self._make_task(client, request.round)._replace(until=until)
            node = self._roster.nodes.get(client)
            if node is None:
                unreachable[client] = self._missing(client, "its node is not connected")
                continue
            declared = self._roster.hellos[client].clients[client]
            self._declared.setdefault(client, declared)
            message = Message(
                pack_task(encode(tree), task),
                node,
                request.kind,
                # Flower deletes the answer when this time is over.
                ttl=2 * self._limits.timeout + TTL_MARGIN,
                group_id=str(request.round),
            )
            message_id = push_message(self._grid, message)
            if message_id:
                pending[client] = Pending(task, message_id)
                self._on_sent(client)
            else:
                unreachable[client] = self._missing(client, "the message could not be sent")
        return pending

    def _pull_reply(self, pending: Pending, schema: Mapping[str, Spec]) -> Reply | None:
        """Return a client's reply, with an error if it is not valid; None before it arrives."""
        task = pending.task
        answer = pull_answer(self._grid, pending.message_id)
        if answer is None:
            return None
        if isinstance(answer, FailedAnswer):
            if answer.by_flower:
                self._without_upload.add(task.client)
            return self._reported(_failed(task.client, answer.reason))
        try:
            reply = unpack_reply(answer.content, task)
            if reply.error is not None:
                self._without_upload.add(reply.client)
            else:
                reply = reply._replace(upload=to_device(decode(answer.content), self._device))
                reply = reply._replace(error=reply_error(reply, schema))
        except Exception as problem:  # a node may have written anything
            reply = _failed(task.client, str(problem) or type(problem).__name__)
        return self._reported(reply)

    def _await(
        self, pending: Pending, schema: Mapping[str, Spec], end: float, uploads: UploadCount
    ) -> Reply:
        """Wait for one reply until `end`, or not at all if the round has failed already.

        Polls at least once.
        """
        client = pending.task.client
        while True:
            late = time.monotonic() >= end
            reply = self._pull_reply(pending, schema)
            if reply is not None:
                return reply
            if late:
                return self._missing(client, f"has not answered within {self._limits.timeout:g} s")
            if uploads.possible < uploads.required:
                return self._missing(
                    client,
                    "not waited for: "
                    f"the round cannot get the {uploads.required} valid uploads it needs",
                )
            # Meanwhile, let reconnecting nodes join, so that they are in the next round.
            self._roster.refresh()
            time.sleep(POLL)

    def _missing(self, client: str, reason: str) -> Reply:
        """Return the reply of a client that has sent nothing."""
        self._without_upload.add(client)
        return self._reported(_failed(client, reason))

    def finished(self, round: Round) -> None:
        """Send each client whose upload was dropped the reason.

        A client without an upload has the reason in its own log.
        """
        for report in round.reports:
            node = self._roster.nodes.get(report.client)
            if report.dropped and report.client not in self._without_upload and node is not None:
                text = (
                    f'round {round.number + 1}: the upload of "{report.client}" was dropped: '
                    f"{report.dropped}"
                )
                self._roster.notices.send(node, text)

    def _reported(self, reply: Reply) -> Reply:
        """Report a reply to the progress display, and return it."""
        self._on_client(reply)
        return reply


def _failed(client: str, reason: str) -> Reply:
    return Reply(client, 0, None, metrics=None, error=reason)
