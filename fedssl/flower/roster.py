"""The roster: which client is on which node. A node is asked for a hello before it trains."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from flwr.app import Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from fedssl.core.console import Notify
from fedssl.core.errors import FedsslError, RunError
from fedssl.engine.uploads.records import sanitize
from fedssl.flower.answers import (
    QUERY_TTL,
    FailedAnswer,
    Notices,
    pull_answer,
    push_message,
)
from fedssl.flower.messages import HELLO, Hello, Refusal, unpack_hello

RETRY = 15.0  # seconds until a rejected node is asked again: its operator may have fixed the cause
POLL = 0.5  # seconds between polls
PATIENCE = 2  # heartbeats after which Flower takes a silent node for disconnected
HelloCheck = Callable[[Hello], str | None]  # returns why a node cannot take part; None if it can

NAMELESS = (
    "its key was registered without a name, and other keys have one: register it again with --name"
)


class Rejection(NamedTuple):
    """When a node was rejected last, and why."""

    when: float
    text: str


class Roster:
    """The nodes of a run, by client.

    Refreshed in each round: a node that was restarted may be a new node to Flower, but it is the
    same client here.

    A client's name belongs to one key. The name that a key was registered with (`flwr supernode
    register --name`) decides. Flower lists only connected nodes, so the names of absent nodes are
    unknown: as soon as one key has a name, nodes whose key has none are rejected. If no key has a
    name, a client's name stays with the key that used it first since this process began.
    """

    def __init__(
        self, grid: Grid, check: HelloCheck, notify: Notify, registered: bool = False
    ) -> None:
        self._grid = grid
        self._check = check
        self._notify = notify
        self.registered = registered  # True if keys of this run are registered with names
        self.notices = Notices(grid)
        self._connected: dict[int, NodeInfo] = {}
        self._pending: dict[int, str] = {}  # node -> id of the hello request without an answer
        self._rejected: dict[int, Rejection] = {}
        self._keys: dict[str, bytes] = {}  # client -> public key it joined with
        self.nodes: dict[str, int] = {}  # client -> its node, which is connected
        self.hellos: dict[str, Hello] = {}

    def refresh(self) -> None:
        """Drop disconnected nodes, ask new and formerly rejected ones, and process answers."""
        self._update_connected()
        self._require_names()
        self._request_hellos()
        for node, message_id in list(self._pending.items()):
            answer = pull_answer(self._grid, message_id)
            if answer is not None:
                del self._pending[node]
                self._process_answer(node, answer)
        self.notices.collect(self._connected)

    def last_seen(self) -> dict[str, float]:
        """Return the connected clients, and when Flower heard from their nodes last.

        Times are in seconds since the epoch. May be called from any thread.
        """
        connected = self._connected
        seen = {}
        for client, node in dict(self.nodes).items():
            info = connected.get(node)
            if info is not None:
                seen[client] = max(0.0, info.online_until - PATIENCE * info.heartbeat_interval)
        return seen

    def _update_connected(self) -> None:
        """Read the connected nodes and drop the entries of all others."""
        connected = {node.node_id: node for node in self._grid.get_nodes()}
        self._connected = connected
        self.nodes = {client: node for client, node in self.nodes.items() if node in connected}
        for node in self._pending.keys() - connected.keys():
            del self._pending[node]
        for node in self._rejected.keys() - connected.keys():
            del self._rejected[node]

    def _request_hellos(self) -> None:
        """Ask for a hello the nodes that are new, or were rejected a while ago."""
        now = time.monotonic()
        skipped = {*self._pending, *self.nodes.values()}
        for node, rejection in self._rejected.items():
            if now - rejection.when < RETRY:
                skipped.add(node)
        for node in sorted(self._connected.keys() - skipped):
            request = Message(RecordDict(), node, HELLO, ttl=QUERY_TTL)
            message_id = push_message(self._grid, request)
            if message_id:
                self._pending[node] = message_id

    def _require_names(self) -> None:
        """Once one key has a name, drop nodes whose key has none."""
        if any(info.name for info in self._connected.values()):
            self.registered = True
        if not self.registered:
            return
        for client, node in list(self.nodes.items()):
            if not self._connected[node].name:
                del self.nodes[client]
                self._reject(node, Refusal(NAMELESS, (client,)))

    def _process_answer(self, node: int, answer: Message | FailedAnswer) -> None:
        if isinstance(answer, FailedAnswer):
            self._reject(node, Refusal(answer.reason, stated=answer.by_flower))
            return
        hello = unpack_hello(answer.content)
        if isinstance(hello, Refusal):
            self._reject(node, hello)
            return
        reason = self._reason_to_reject(node, hello)
        if reason is not None:
            self._reject(node, Refusal(reason, tuple(hello.clients)))
            return
        self._rejected.pop(node, None)
        for client in hello.clients:
            self.nodes[client] = node
            self.hellos[client] = hello
            self._keys[client] = self._connected[node].public_key

    def _reject(self, node: int, refusal: Refusal) -> None:
        """Log a rejection under the node's name and send it to the node, once for each reason."""
        reason = sanitize(refusal.reason)
        text = f"{self._name_for_log(node, refusal.clients)}: {reason}"
        previous = self._rejected.get(node)
        self._rejected[node] = Rejection(time.monotonic(), text)
        if previous is not None and previous.text == text:
            return
        self._notify(f"rejected {text}")
        if not refusal.stated:
            self.notices.send(node, f"this node was rejected: {reason}")

    def _name_for_log(self, node: int, claimed: Sequence[str]) -> str:
        """Return a node's name for the log: that of its key, otherwise the names it claims."""
        registered = self._connected[node].name
        if registered:
            return f'node "{sanitize(registered)}"'
        if claimed:
            return f'node {node}, which claims to be "{sanitize(", ".join(claimed))}"'
        return f"node {node}"

    def _reason_to_reject(self, node: int, hello: Hello) -> str | None:
        """Return why a node does not have the clients it claims, or cannot take part."""
        reason = self._name_conflict(self._connected[node], hello)
        if reason is not None:
            return reason
        try:
            return self._check(hello)
        except FedsslError as problem:
            return str(problem)
        except Exception as problem:  # an untrusted hello may cause any error
            return f"checking its hello failed ({type(problem).__name__})"

    def _name_conflict(self, info: NodeInfo, hello: Hello) -> str | None:
        """Return why a node may not use the names of its clients."""
        names = ", ".join(hello.clients)
        if info.name and set(hello.clients) != {info.name}:
            return f'its key was registered with the name "{info.name}", not "{names}"'
        others = {other.name for other in self._connected.values() if other.node_id != info.node_id}
        for client in hello.clients:
            if client in others:
                return f'another node\'s key was registered with the name "{client}"'
            if client in self.nodes:
                return f'another node with client-id "{client}" is connected'
            if not info.name and self._keys.get(client, info.public_key) != info.public_key:
                return (
                    f'client-id "{client}" belongs to another key; '
                    "register keys with --name to replace one"
                )
        if self.registered and not info.name:
            return NAMELESS
        return None

    def with_common_shape(self, among: Collection[str] = ()) -> list[str]:
        """Return the connected clients whose images have the most common shape.

        Only clients in `among` are considered, unless it is empty.
        """
        connected = sorted(client for client in self.nodes if not among or client in among)
        if not connected:
            return []
        shapes = Counter(self.hellos[client].image for client in connected)
        common = shapes.most_common(1)[0][0]
        return [client for client in connected if self.hellos[client].image == common]

    def wait(self, clients: Collection[str], enough: int, timeout: float) -> list[str]:
        """Wait until `enough` of `clients` are connected or the time is up, and return them.

        If `clients` is empty, any client counts.
        """
        end = time.monotonic() + timeout
        logged = -1
        while True:
            self.refresh()
            connected = self.with_common_shape(clients)
            count = len(connected)
            if count >= enough or time.monotonic() >= end:
                return connected
            if count != logged:
                logged = count
                self._notify(
                    f"{count} of {enough} clients are connected; waiting up to {timeout:g} s"
                )
            time.sleep(min(POLL, max(0.0, end - time.monotonic())))

    def join(self, expected: int, known: Collection[str], enough: int, timeout: float) -> list[str]:
        """Wait until all expected clients have joined, and return them.

        A run that resumes continues after the timeout with `enough` of its clients (`known`).
        """
        joined = self.wait(known, expected, timeout)
        if len(joined) >= expected:
            for client in sorted(self.nodes.keys() - set(joined)):
                shape = self.hellos[client].image
                self._notify(f"left out {client}: its images have shape {shape}, unlike most")
            return joined
        if known and len(joined) >= enough:
            missing = ", ".join(sorted(set(known) - set(joined)))
            self._notify(f"resuming without {missing} until they reconnect")
            return joined
        reasons = [f"rejected {rejection.text}" for rejection in self._rejected.values()]
        if len(self.nodes) > len(joined):
            reasons.append("all clients need images of one shape")
            for client, hello in sorted(self.hellos.items()):
                reasons.append(f'client "{client}" has images of shape {hello.image}')
        text = f"only {len(joined)} of {expected} clients joined within {timeout:g} s"
        if not reasons:
            text += ": start the missing nodes, or raise join-timeout"
        raise RunError("; ".join([text, *reasons]))
