"""Nodes join a run, or are rejected with a reason."""

from __future__ import annotations

import time

import pytest
from error_messages import raises
from fake_grid import (
    Nodes,
    edited,
    is_task,
    tiny,
)
from flwr.app import Error, Message

from fedssl.core.errors import ConfigError, RunError
from fedssl.flower import client_app, messages, roster
from fedssl.flower.node import Node


@pytest.mark.rows("P3")
def test_too_few_clients_end_the_run_when_the_time_is_up(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr")
    grid = nodes.grid(experiment)
    del grid.nodes[11]
    began = time.monotonic()
    with raises(RunError):
        nodes.serve(experiment, grid)
    assert time.monotonic() - began < 10
    assert not grid.receivers("train")


@pytest.mark.rows("C11")
def test_two_nodes_with_one_name_do_not_both_join(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr")
    grid = nodes.grid(experiment)
    grid.nodes[12] = nodes.node(client_app(experiment), 12, "1")
    with raises(RunError):
        nodes.serve(experiment, grid)


def test_a_node_without_a_client_is_rejected(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr", clients=1, **{"guard.min_uploads": 1})
    lines = nodes.serve(experiment, nodes.dealt(experiment, 2))
    assert "rejected node 11: more nodes than clients: no client is left for node 1 of 2" in lines


@pytest.mark.rows("U8")
def test_another_architecture_is_rejected_before_training(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr")
    grid = nodes.grid(experiment)
    grid.nodes[12] = nodes.node(client_app(experiment.with_changes({"method.hidden": 24})), 12, "2")
    reason = r"its model differs: projector\S+ has shape \(24, .*\), expected \(16, "
    with pytest.raises(RunError, match=reason):
        nodes.serve(experiment, grid)
    assert not grid.receivers("train")


def test_another_version_is_rejected(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = tiny("fedavg", "simclr")
    grid = nodes.grid(experiment)
    hello = Node.hello

    def old_hello(self: Node) -> messages.Hello:
        if "1" in self.shards:
            return hello(self)._replace(version="0.0.9")
        return hello(self)

    monkeypatch.setattr(Node, "hello", old_hello)
    with raises(RunError):
        nodes.serve(experiment, grid)


def test_a_node_without_its_images_is_rejected_without_naming_files(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr")
    grid = nodes.grid(experiment)
    grid.nodes[12] = nodes.node(
        client_app(experiment), 12, "2", **{"data-dir": str(nodes.root / "secret-ward")}
    )
    with raises(RunError):
        nodes.serve(experiment, grid)
    assert not grid.contains(b"secret-ward")


def test_a_rejected_node_is_asked_again(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its disk was not mounted when it was first asked. The reason is logged once."""
    monkeypatch.setattr(roster, "RETRY", 0.05)
    experiment = tiny("fedavg", "simclr", rounds=1)
    grid = nodes.grid(experiment)
    healthy = grid.nodes[11]
    asked = 0

    def later(message: Message) -> Message | None:
        nonlocal asked
        asked += message.metadata.message_type == messages.HELLO
        if asked > 2:
            return healthy(message)
        return Message(Error(0, "hiccup"), reply_to=message)

    grid.nodes[11] = later
    lines = nodes.serve(experiment, grid, join_timeout=10)
    assert nodes.dropped() == [dict.fromkeys("012")]
    assert asked == 3
    assert lines.count("rejected node 11: Flower reports: hiccup") == 1


def test_a_node_that_returns_under_another_name_is_not_asked_to_train(nodes: Nodes) -> None:
    """Away in the second round, back in the third under a name that was unknown at the start."""
    experiment = tiny("fedavg", "simclr", rounds=4)
    grid = nodes.grid(experiment)

    def push(message: Message) -> None:
        if is_task(message, node=12, round=0):
            absent.append(grid.nodes.pop(11))
        if is_task(message, node=12, round=1):
            grid.nodes[11] = edited(absent[0], messages.HELLO, clients={"x": 16})

    absent = []
    grid.on_push = push
    nodes.serve(experiment, grid)
    sent = [message.metadata for message in grid.sent if message.metadata.dst_node_id == 11]
    rounds = [metadata.group_id for metadata in sent]
    assert rounds.count("0") == 1
    assert not {"1", "2", "3"} & set(rounds)
    assert [line["1"] for line in nodes.dropped()][1:] == ["its node is not connected"] * 3


@pytest.mark.rows("C11")
@pytest.mark.parametrize(("claims", "reason"), [("1", 'registered with the name "2"'), ("2", None)])
def test_a_key_that_was_registered_with_a_name_has_that_name(
    claims: str, reason: str | None, nodes: Nodes
) -> None:
    experiment = tiny("fedavg", "simclr", rounds=1, clients=2)
    grid = nodes.grid(experiment.with_changes({"clients": 3}))
    del grid.nodes[11]
    grid.names |= {10: "0", 12: "2"}
    grid.nodes[12] = edited(grid.nodes[12], messages.HELLO, clients={claims: 16})
    if reason is None:
        nodes.serve(experiment, grid)
    else:
        with pytest.raises(RunError, match=reason):
            nodes.serve(experiment, grid)


@pytest.mark.rows("C11")
def test_a_registered_name_belongs_to_one_key(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr", rounds=1)
    grid = nodes.grid(experiment)
    grid.names |= {10: "0", 11: "1", 12: "2"}
    grid.nodes[9] = nodes.node(client_app(experiment), 9, "2")  # it is processed first
    lines = nodes.serve(experiment, grid)
    reason = 'another node\'s key was registered with the name "2"'
    assert f'rejected node 9, which claims to be "2": {reason}' in lines
    assert grid.receivers("train") == [10, 11, 12]


def test_settings_are_checked(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr")
    with raises(ConfigError):
        nodes.serve(experiment, nodes.grid(experiment), quorom=1)
