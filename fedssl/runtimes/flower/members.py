"""Which client lives on which node: every node is asked who it is, before it is asked to train."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Protocol

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedssl.data.progress import Say
from fedssl.errors import FedsslError, RunError
from fedssl.guard import plain
from fedssl.runtimes.flower.words import HELLO, Hello, hello_in

POLL = 0.5  # seconds between looks
ASK_AGAIN = 15.0  # seconds until a node that was refused is asked again: what was wrong there may be mended
ANSWER_WITHIN = 3600.0  # seconds that a hello is good for: a node may have to decode its images first


class Fits(Protocol):
    """Whether a node can take part."""

    def __call__(self, hello: Hello) -> str | None:
        """Why not; None if it can."""


def answer_to(grid: Grid, id: str) -> Message | str | None:
    """The answer to a message, or why it cannot be read; None if there is none yet.

    One at a time: if Flower fails on what a node has written, no other node's answer goes with it.
    """
    try:
        answer = next((found for found in grid.pull_messages([id]) if found.metadata.reply_to_message_id == id), None)
    except Exception as problem:  # a stranger may have written anything
        return f"its answer cannot be read ({type(problem).__name__})"
    return f"Flower says: {answer.error.reason}" if answer is not None and answer.has_error() else answer


class Members:
    """The nodes of a run, by client. Looked through anew each round: a node that was restarted may be another to
    Flower, and is the same client to us."""

    def __init__(self, grid: Grid, fits: Fits, say: Say) -> None:
        self._grid, self._fits, self._say = grid, fits, say
        self._asked: dict[int, str] = {}  # node -> id of the question who it is, while the answer is awaited
        self._refused: dict[int, tuple[float, str]] = {}  # node -> when, and why
        self.nodes: dict[str, int] = {}  # client -> its node, which is connected
        self.hellos: dict[str, Hello] = {}

    def look(self) -> None:
        """Ask nodes not seen before, or refused a while ago; hear those that have answered; forget those gone."""
        named = {node.node_id: node.name for node in self._grid.get_nodes()}
        self.nodes = {client: node for client, node in self.nodes.items() if node in named}
        self._asked = {node: id for node, id in self._asked.items() if node in named}
        self._refused = {node: refusal for node, refusal in self._refused.items() if node in named}
        now = time.monotonic()
        waiting = {node for node, (when, _) in self._refused.items() if now - when < ASK_AGAIN}
        for node in sorted(named.keys() - waiting - self._asked.keys() - set(self.nodes.values())):
            letter = Message(RecordDict(), node, HELLO, ttl=ANSWER_WITHIN)
            if asked := next(iter(self._grid.push_messages([letter])), None):
                self._asked[node] = asked
        for node, id in list(self._asked.items()):
            answer = answer_to(self._grid, id)
            if answer is not None:
                del self._asked[node]
                self._hear(node, answer, named)

    def _hear(self, node: int, answer: Message | str, named: Mapping[int, str]) -> None:
        hello = answer if isinstance(answer, str) else hello_in(answer.content)
        if isinstance(hello, str):
            self._refuse(node, "a node", hello)
        elif (reason := self._fault(node, hello, named)) is not None:
            self._refuse(node, f'a node that calls itself "{", ".join(hello.clients)}"', reason)
        else:
            self._refused.pop(node, None)
            self.nodes |= dict.fromkeys(hello.clients, node)
            self.hellos |= dict.fromkeys(hello.clients, hello)

    def _refuse(self, node: int, who: str, reason: str) -> None:
        before, reason = self._refused.get(node, (0.0, ""))[1], plain(reason)
        self._refused[node] = time.monotonic(), reason
        if reason != before:
            self._say(f"refused {who}: {reason}")

    def _fault(self, node: int, hello: Hello, named: Mapping[int, str]) -> str | None:
        """Why it does not have the clients it says it has, or cannot take part."""
        if named[node] and set(hello.clients) != {named[node]}:
            return f'its key was registered with the name "{named[node]}"'
        for client in hello.clients:
            if client in (name for other, name in named.items() if other != node):
                return f'another node\'s key was registered with the name "{client}"'
            if client in self.nodes:
                return f'another node with client-id "{client}" is connected'
        try:
            return self._fits(hello)
        except FedsslError as problem:
            return str(problem)
        except Exception as problem:  # of what a stranger says of itself, anything may follow
            return f"what it says of itself leads to an error ({type(problem).__name__})"

    def alike(self, among: Collection[str] = ()) -> list[str]:
        """The clients that are connected and have images of the shape that most have; all are of `among`, if any."""
        here = sorted(client for client in self.nodes if not among or client in among)
        shapes = Counter(self.hellos[client].image for client in here)
        return [client for client in here if self.hellos[client].image == shapes.most_common(1)[0][0]]

    def wait(self, clients: Collection[str], enough: int, timeout: float) -> list[str]:
        """Those of `clients`, or of all who come, that are here once `enough` are or the time is up."""
        end, told = time.monotonic() + timeout, -1
        while True:
            self.look()
            here = self.alike(clients)
            if len(here) >= enough or time.monotonic() >= end:
                return here
            if len(here) != told:
                told = len(here)
                self._say(f"{told} of {enough} clients are here; waiting up to {timeout:g} s")
            time.sleep(min(POLL, max(0.0, end - time.monotonic())))

    def join(self, expected: int, known: Collection[str], enough: int, timeout: float) -> list[str]:
        """Wait until all who are expected have joined; for a run that goes on, `enough` of the clients it began with
        (`known`) do after the time is up."""
        joined = self.wait(known, expected, timeout)
        if len(joined) >= expected:
            for client in sorted(self.nodes.keys() - set(joined)):
                self._say(f"left out {client}: its images are {self.hellos[client].image}, unlike most")
            return joined
        if known and len(joined) >= enough:
            self._say(f"going on without {', '.join(sorted(set(known) - set(joined)))}, until they are back")
            return joined
        reasons = dict.fromkeys(reason for _, reason in self._refused.values())
        shapes = [f"images of {hello.image} at {client}" for client, hello in sorted(self.hellos.items())]
        why = [f"refused: {reason}" for reason in reasons] + (shapes if len(self.nodes) > len(joined) else [])
        text = "".join(f"; {reason}" for reason in why)
        raise RunError(f"only {len(joined)} of {expected} clients joined within {timeout:g} s{text}")
