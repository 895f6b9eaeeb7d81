"""Which client lives on which node: every node is asked who it is, before it is asked to train."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from flwr.app import Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from fedssl.data.progress import Say
from fedssl.errors import FedsslError, RunError
from fedssl.guard import plain
from fedssl.runtimes.flower.answers import ANSWER_WITHIN, Failed, Notices, answer_to
from fedssl.runtimes.flower.words import HELLO, Hello, Refusal, hello_in

ASK_AGAIN = 15.0  # seconds until a node that was refused is asked again: what was wrong there may be mended
POLL = 0.5  # seconds between looks


NAMELESS = "its key was registered without a name, and other keys have one: register it again with --name"


class Rejected(NamedTuple):
    """When a node was rejected last, and why."""

    when: float
    text: str


class Fits(Protocol):
    """Whether a node can take part."""

    def __call__(self, hello: Hello) -> str | None:
        """Why not; None if it can."""


class Members:
    """The nodes of a run, by client. Looked through anew each round: a node that was restarted may be another to
    Flower, and is the same client to us.

    A client's name belongs to one key. The name that a key was registered with (`flwr supernode register --name`)
    decides. Flower lists only connected nodes, so the names of absent nodes are unknown: as soon as one key has a name,
    nodes whose key has none are rejected. Where no key has a name, a client's name stays with the key that used it
    first since this process began.
    """

    def __init__(self, grid: Grid, fits: Fits, say: Say, registered: bool = False) -> None:
        self._grid, self._fits, self._say = grid, fits, say
        self.registered = registered  # whether keys of this run are registered with names
        self.notices = Notices(grid)
        self._connected: dict[int, NodeInfo] = {}
        self._asked: dict[int, str] = {}  # node -> id of the question who it is, while the answer is awaited
        self._refused: dict[int, Rejected] = {}
        self._keys: dict[str, bytes] = {}  # client -> public key it joined with
        self.nodes: dict[str, int] = {}  # client -> its node, which is connected
        self.hellos: dict[str, Hello] = {}

    def look(self) -> None:
        """Ask nodes not seen before, or refused a while ago; hear those that have answered; forget those gone."""
        here = {node.node_id: node for node in self._grid.get_nodes()}
        self._connected = here
        self.nodes = {client: node for client, node in self.nodes.items() if node in here}
        self._asked = {node: id for node, id in self._asked.items() if node in here}
        self._refused = {node: refusal for node, refusal in self._refused.items() if node in here}
        self._require_names()
        now = time.monotonic()
        waiting = {node for node, refusal in self._refused.items() if now - refusal.when < ASK_AGAIN}
        for node in sorted(here.keys() - waiting - self._asked.keys() - set(self.nodes.values())):
            letter = Message(RecordDict(), node, HELLO, ttl=ANSWER_WITHIN)
            if asked := next(iter(self._grid.push_messages([letter])), None):
                self._asked[node] = asked
        for node, id in list(self._asked.items()):
            answer = answer_to(self._grid, id)
            if answer is not None:
                del self._asked[node]
                self._hear(node, answer)
        self.notices.collect(here)

    def _require_names(self) -> None:
        """Once one key has a name, drop nodes whose key has none."""
        self.registered = self.registered or any(info.name for info in self._connected.values())
        if not self.registered:
            return
        for client, node in list(self.nodes.items()):
            if not self._connected[node].name:
                del self.nodes[client]
                self._refuse(node, Refusal(NAMELESS, (client,)))

    def _hear(self, node: int, answer: Message | Failed) -> None:
        if isinstance(answer, Failed):
            self._refuse(node, Refusal(answer.reason, stated=answer.by_flower))
            return
        hello = hello_in(answer.content)
        if isinstance(hello, Refusal):
            self._refuse(node, hello)
            return
        reason = self._fault(node, hello)
        if reason is not None:
            self._refuse(node, Refusal(reason, tuple(hello.clients)))
            return
        self._refused.pop(node, None)
        for client in hello.clients:
            self.nodes[client] = node
            self.hellos[client] = hello
            self._keys[client] = self._connected[node].public_key

    def _refuse(self, node: int, refusal: Refusal) -> None:
        """Log a rejection under the site's name and send it to the node, once for each reason."""
        reason = plain(refusal.reason)
        text = f"{self._site(node, refusal.clients)}: {reason}"
        before = self._refused.get(node)
        self._refused[node] = Rejected(time.monotonic(), text)
        if before is not None and before.text == text:
            return
        self._say(f"rejected {text}")
        if not refusal.stated:
            self.notices.send(node, f"this site was rejected: {reason}")

    def _site(self, node: int, claimed: Sequence[str]) -> str:
        """Name a node for the log: by the name its key was registered with, otherwise by what it claims."""
        registered = self._connected[node].name
        if registered:
            return f'site "{plain(registered)}"'
        if claimed:
            return f'node {node}, which claims to be "{plain(", ".join(claimed))}"'
        return f"node {node}"

    def _fault(self, node: int, hello: Hello) -> str | None:
        """Return why a node does not have the clients it claims, or cannot take part."""
        info = self._connected[node]
        if info.name and set(hello.clients) != {info.name}:
            return f'its key was registered with the name "{info.name}", not "{", ".join(hello.clients)}"'
        others = {other.name for other in self._connected.values() if other.node_id != node}
        for client in hello.clients:
            if client in others:
                return f'another node\'s key was registered with the name "{client}"'
            if client in self.nodes:
                return f'another node with client-id "{client}" is connected'
            if not info.name and self._keys.get(client, info.public_key) != info.public_key:
                return f'client-id "{client}" belongs to another key; register keys with --name to replace one'
        if self.registered and not info.name:
            return NAMELESS
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
        rejected = [f"rejected {refusal.text}" for refusal in self._refused.values()]
        shapes = [f"images of {hello.image} at {client}" for client, hello in sorted(self.hellos.items())]
        why = rejected + (shapes if len(self.nodes) > len(joined) else [])
        text = "".join(f"; {reason}" for reason in why)
        raise RunError(f"only {len(joined)} of {expected} clients joined within {timeout:g} s{text}")
