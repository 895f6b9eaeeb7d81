"""Send one phase of a round to its clients, and yield their answers as they arrive."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedssl.flower.answers import FailedAnswer, pull_answer, push_message
from fedssl.flower.messages import RoundTask, pack_task
from fedssl.flower.roster import Roster

POLL = 0.5  # seconds between polls
Content = Callable[[], RecordDict]  # makes the records of a message, apart from its task


class Phase(NamedTuple):
    """The messages of one phase."""

    kind: str  # Flower's message type
    round: int
    contents: Mapping[str, Content]  # client -> content
    ttl: float  # seconds until Flower deletes the answers


class PhaseAnswer(NamedTuple):
    """What a client has sent in one phase."""

    client: str
    task: RoundTask
    content: RecordDict | None
    error: str | None = None  # why there is no content


class PhaseExchange:
    """Exchanges the messages of phases with nodes."""

    def __init__(
        self, grid: Grid, roster: Roster, make_task: Callable[[str, int], RoundTask]
    ) -> None:
        self._grid = grid
        self._roster = roster
        self._make_task = make_task

    def ask(self, phase: Phase, deadline: float) -> Iterator[PhaseAnswer]:
        """Send a phase's messages; yield one answer for each client, until a monotonic time."""
        until = time.time() + deadline - time.monotonic()
        self._roster.refresh()
        pending: dict[str, RoundTask] = {}  # message id -> task
        for client, content in phase.contents.items():
            task = self._make_task(client, phase.round)._replace(until=until)
            message_id = self._send(phase, task, content)
            if message_id:
                pending[message_id] = task
            else:
                yield PhaseAnswer(client, task, None, "its node is not connected")
        while pending:
            late = time.monotonic() >= deadline
            for message_id, task in list(pending.items()):
                answer = self._pull(message_id, task)
                if answer is not None:
                    del pending[message_id]
                    yield answer
                    del answer  # before the next one is pulled: it may be large
            if late:
                break
            if pending:
                self._roster.refresh()
                time.sleep(POLL)
        for task in pending.values():
            yield PhaseAnswer(task.client, task, None, "has not answered in time")

    def _send(self, phase: Phase, task: RoundTask, content: Content) -> str | None:
        """Return the id of a client's message; None if it could not be sent."""
        node = self._roster.nodes.get(task.client)
        if node is None:
            return None
        records = pack_task(content(), task)
        message = Message(records, node, phase.kind, ttl=phase.ttl, group_id=str(phase.round))
        return push_message(self._grid, message)

    def _pull(self, message_id: str, task: RoundTask) -> PhaseAnswer | None:
        answer = pull_answer(self._grid, message_id)
        if answer is None:
            return None
        if isinstance(answer, FailedAnswer):
            return PhaseAnswer(task.client, task, None, answer.reason)
        return PhaseAnswer(task.client, task, answer.content)
