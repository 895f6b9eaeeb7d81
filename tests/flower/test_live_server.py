"""A Flower server records the round under way in live.json, for `fedssl watch`."""

from __future__ import annotations

from typing import Any

import pytest
from fake_grid import Nodes, tiny, trains, without_training
from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo

from fedssl.flower.roster import PATIENCE, Roster
from fedssl.runs.live_file import LiveState, read_live
from fedssl.runs.live_status import LiveStatus

CONNECTED = {"0", "1", "2"}


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> list[LiveState]:
    """Return the content of live.json at the end of each round, before the measurement."""
    states: list[LiveState] = []
    measure = LiveStatus.measure

    def sample(self: LiveStatus) -> None:
        states.append(self._sample())
        measure(self)

    monkeypatch.setattr(LiveStatus, "measure", sample)
    return states


def test_the_clients_of_each_round_are_recorded(nodes: Nodes, sampled: list[LiveState]) -> None:
    """The second node does not answer in time: its client is dropped."""
    experiment = tiny("fedavg", "simclr", rounds=2)
    grid = nodes.grid(experiment)
    grid.nodes[11] = without_training(grid.nodes[11])
    nodes.serve(experiment, grid, quorum=0.5, round_timeout=1.0)
    assert [state.round for state in sampled] == [1, 2]
    for state in sampled:
        states = {name: client.state for name, client in state.clients.items()}
        assert states == {"0": "replied", "1": "failed", "2": "replied"}
        assert state.clients["1"].reason == "has not answered within 1 s"
        assert state.clients["0"].images > 0
        assert state.connected is not None
        assert state.connected.keys() == CONNECTED
    assert read_live(nodes.root / "flower") is None


def test_a_client_is_training_once_its_message_is_sent(nodes: Nodes) -> None:
    """At the last message of a round, the clients before it train."""
    experiment = tiny("fedavg", "simclr", rounds=1)
    grid = nodes.grid(experiment)
    statuses: list[LiveStatus] = []
    seen: list[dict[str, str]] = []

    def push(message: Message) -> None:
        if trains(message):
            clients = statuses[-1]._sample().clients
            seen.append({name: client.state for name, client in clients.items()})

    grid.on_push = push
    begin = LiveStatus.begin_round

    def begin_round(self: LiveStatus, *arguments: Any) -> None:
        statuses.append(self)
        begin(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LiveStatus, "begin_round", begin_round)
        nodes.serve(experiment, grid)
    assert seen == [
        {"0": "waiting", "1": "waiting", "2": "waiting"},
        {"0": "training", "1": "waiting", "2": "waiting"},
        {"0": "training", "1": "training", "2": "waiting"},
    ]


def test_a_masked_upload_is_a_reply(nodes: Nodes, sampled: list[LiveState]) -> None:
    experiment = tiny("fedavg", "simclr", "", 'norm = "group"', rounds=1)
    nodes.serve(experiment, nodes.grid(experiment), secure_aggregation=True)
    (state,) = sampled
    assert {client.state for client in state.clients.values()} == {"replied"}
    assert state.replied == 3


def test_a_private_server_records_nothing_of_a_node(nodes: Nodes, sampled: list[LiveState]) -> None:
    privacy = {"clip": 1.0, "noise": 4.0}
    experiment = tiny("fedavg", "simclr", "", 'norm = "group"', privacy=privacy, rounds=1)
    nodes.serve(experiment, nodes.grid(experiment))
    (state,) = sampled
    assert state.replied == 3
    for client in state.clients.values():
        assert (client.state, client.since, client.images, client.reason) == (
            "training",
            0,
            0,
            None,
        )


def test_a_waiting_server_records_the_connected_clients(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr")
    grid = nodes.grid(experiment)
    del grid.nodes[12]
    with pytest.raises(Exception, match="only 2 of 3 clients joined"):
        nodes.serve(experiment, grid, join_timeout=0.2)
    state = read_live(nodes.root / "flower")
    assert state is not None
    assert (state.phase, state.expected) == ("failed", 3)
    assert state.connected is not None
    assert state.connected.keys() == {"0", "1"}


def test_a_node_was_seen_at_its_last_heartbeat() -> None:
    """Flower treats a node as connected until two heartbeats are missing."""
    roster: Any = Roster.__new__(Roster)
    roster.nodes = {"a": 10, "b": 11, "gone": 12}
    roster._connected = {
        10: NodeInfo(node_id=10, online_until=1060.0, heartbeat_interval=30.0),
        11: NodeInfo(node_id=11),
    }
    assert PATIENCE == 2
    assert roster.last_seen() == {"a": 1000.0, "b": 0.0}
