"""Rounds with slow, absent and misbehaving clients; each has its reason in the log."""

from __future__ import annotations

import time
from typing import Any

import pytest
from error_messages import raises
from fake_grid import (
    FakeGrid,
    FlickeringGrid,
    Nodes,
    edited,
    is_task,
    tiny,
    trains,
    without_training,
)
from flwr.app import Message

from fedssl.core.errors import ClientError, RunError
from fedssl.engine.checkpoints.store import Store
from fedssl.flower import client_app, messages
from fedssl.flower.node import Node


@pytest.mark.rows("P2")
def test_a_silent_client_is_dropped_at_the_deadline(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr")
    grid = nodes.grid(experiment)
    grid.nodes[11] = without_training(grid.nodes[11])
    began = time.monotonic()
    nodes.serve(experiment, grid, round_timeout=0.5)
    assert 1.5 <= time.monotonic() - began < 20
    assert nodes.dropped() == [{"0": None, "1": "has not answered within 0.5 s", "2": None}] * 3


@pytest.mark.rows("P2")
def test_too_few_answers_fail_the_round_and_change_nothing(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr")
    grid = nodes.grid(experiment)
    for node in (11, 12):
        grid.nodes[node] = without_training(grid.nodes[node])
    with raises(RunError):
        nodes.serve(experiment, grid, round_timeout=0.3, quorum=0.6)
    assert nodes.dropped()[0] == {
        "0": "only 1 of 3 clients sent a valid upload; 2 are required (quorum)",
        "1": "has not answered within 0.3 s",
        "2": "has not answered within 0.3 s",
    }
    checkpoints = Store(nodes.root / "flower").checkpoints
    last = (checkpoints / "00003.safetensors").read_bytes()
    assert last == (checkpoints / "00002.safetensors").read_bytes()


def test_invalid_uploads_do_not_count_for_the_quorum(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr", rounds=1)
    grid = nodes.grid(experiment)
    grid.nodes[11] = edited(grid.nodes[11], "train", images=-5)
    with raises(RunError):
        nodes.serve(experiment, grid, quorum=1.0)
    missed = "only 2 of 3 clients sent a valid upload; 3 are required (quorum)"
    assert nodes.dropped() == [
        {"0": missed, "1": "claims -5 images, not an integer from 1 to 10,000,000", "2": missed}
    ]


def test_a_round_that_cannot_reach_its_quorum_ends_early(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr", rounds=1)
    grid = nodes.grid(experiment)
    grid.nodes[11] = edited(grid.nodes[11], "train", error="no electricity")
    grid.nodes[12] = without_training(grid.nodes[12])
    began = time.monotonic()
    with raises(RunError):
        nodes.serve(experiment, grid, quorum=1.0, round_timeout=60)
    assert time.monotonic() - began < 30
    assert [line["2"] for line in nodes.dropped()] == [
        "not waited for: the round cannot get the 3 valid uploads it needs"
    ]


def test_a_round_begins_when_as_many_are_connected_as_must_answer(nodes: Nodes) -> None:
    """After the first round two of three are away for twenty lookups; three failed rounds would
    have ended the run."""
    experiment = tiny("fedavg", "simclr")
    grid = FlickeringGrid(nodes.grid(experiment).nodes)

    def push(message: Message) -> None:
        if is_task(message, node=12, round=0):
            grid.away = 20

    grid.on_push = push
    nodes.serve(experiment, grid, quorum=0.6)
    assert nodes.dropped() == [dict.fromkeys("012")] * 3


def test_a_round_begins_when_the_minimum_of_uploads_is_connected(nodes: Nodes) -> None:
    """One of two sites is away for twenty lookups. The quorum is one site; a merge needs two."""
    experiment = tiny("fedavg", "simclr", clients=2)
    grid = FlickeringGrid(nodes.grid(experiment).nodes)

    def push(message: Message) -> None:
        if is_task(message, node=11, round=0):
            grid.away = 20

    grid.on_push = push
    nodes.serve(experiment, grid, quorum=0.5)
    assert nodes.dropped() == [dict.fromkeys("01")] * 3


@pytest.mark.rows("P2")
def test_a_client_that_is_too_slow_stops_at_the_deadline(nodes: Nodes) -> None:
    """A node trains one task at a time: an expired one would delay its next round."""
    experiment = tiny("fedavg", "simclr", rounds=1, **{"train.epochs": 1_000_000})
    grid = nodes.grid(experiment)
    began = time.monotonic()
    with raises(RunError):
        nodes.serve(experiment, grid, round_timeout=2.0, quorum=0)
    assert time.monotonic() - began < 30
    reasons = list(nodes.dropped()[0].values())  # the nodes train in turn, so two did not begin
    assert reasons[0] == "it stopped training because the round's deadline has passed"
    for reason in reasons[1:]:
        assert str(reason).startswith("the round's deadline had passed before this client began")


def test_an_answer_in_time_does_not_expire_before_its_turn(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr", rounds=1)
    grid = nodes.grid(experiment)
    nodes.serve(experiment, grid, round_timeout=100)
    assert {message.metadata.ttl for message in grid.sent if trains(message)} == {800}


@pytest.mark.rows("U7")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"round": 0}, "answers round 0 instead of 1"),
        ({"attempt": 3}, "answers attempt 3 instead of 0"),
        ({"client": "0"}, "answers client '0' instead of '1'"),
        ({"run": "other"}, "answers run 'other'"),
        ({"images": -5}, "claims -5 images, not an integer from 1 to 10,000,000"),
        ({"images": "many"}, "claims 'many' images, not an integer from 1 to 10,000,000"),
        ({"images": 10**6}, "claims 1000000 images, but declared 16 when it joined"),
        ({"error": "x" * 9999}, "x" * 200 + "…"),
        ({"error": "no electricity"}, "no electricity"),
    ],
)
def test_a_reply_to_something_else_is_dropped(
    changes: dict[str, Any], reason: str, nodes: Nodes
) -> None:
    experiment = tiny("fedavg", "simclr", rounds=2)
    grid = nodes.grid(experiment)
    grid.nodes[11] = edited(grid.nodes[11], "train", **changes)
    nodes.serve(experiment, grid)
    last = nodes.dropped()[-1]
    assert (last["0"], last["2"]) == (None, None)
    assert last["1"] is not None
    assert last["1"].startswith(reason)
    assert len(last["1"]) <= 201


@pytest.mark.rows("U11")
def test_a_client_that_returns_cannot_state_more_images(nodes: Nodes) -> None:
    """Away in the second round, it joins again and trains with another number of images."""
    experiment = tiny("fedavg", "simclr", rounds=4)
    grid = nodes.grid(experiment)
    node = nodes.node(client_app(experiment), 21, "1")
    inflated = edited(node, "query.hello", clients={"1": 10**7})

    def push(message: Message) -> None:
        if is_task(message, node=12, round=0):
            grid.nodes.pop(11, None)
        if is_task(message, node=12, round=1):
            grid.nodes[21] = edited(inflated, "train", images=10**7)

    grid.on_push = push
    nodes.serve(experiment, grid)
    assert [line["1"] for line in nodes.dropped()][2:] == [
        "claims 10000000 images, but declared 16 when it joined"
    ] * 2


@pytest.mark.rows("U7")
def test_a_second_answer_is_ignored(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr")
    nodes.serve(experiment, nodes.grid(experiment), "once")

    class Twice(FakeGrid):
        def pull_messages(self, message_ids: Any) -> list[Message]:
            return super().pull_messages(message_ids) * 2

    nodes.serve(experiment, Twice(nodes.grid(experiment).nodes), "twice")
    assert nodes.bits("once") == nodes.bits("twice")
    assert nodes.dropped("twice") == [dict.fromkeys("012")] * 3


def test_an_absent_node_is_dropped_and_joins_again(nodes: Nodes) -> None:
    """Not connected in the second round; back in the third as another node with its old name."""
    experiment = tiny("fedavg", "simclr", rounds=4)
    grid = nodes.grid(experiment)
    app = client_app(experiment)

    def push(message: Message) -> None:
        if is_task(message, node=12, round=0):
            grid.nodes.pop(11, None)
        if is_task(message, node=12, round=1):
            grid.nodes[21] = nodes.node(app, 21, "1")

    grid.on_push = push
    nodes.serve(experiment, grid)
    first, *rest = [line["1"] for line in nodes.dropped()]
    assert first == "Flower reports: node unavailable"
    assert rest == ["its node is not connected", None, None]


def test_the_run_continues_whatever_error_a_client_has(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = tiny("fedavg", "simclr", **{"guard.min_uploads": 1})
    train = Node.train

    def fail(self: Node, task: messages.RoundTask, message: Any) -> Any:
        if task.client == "0":
            raise ClientError("no electricity")
        if task.client == "1":
            raise OSError("/srv/secret-ward/7.png is gone")
        return train(self, task, message)

    monkeypatch.setattr(Node, "train", fail)
    grid = nodes.grid(experiment)
    nodes.serve(experiment, grid, quorum=0.3)
    assert nodes.dropped()[-1] == {
        "0": "no electricity",
        "1": "OSError; see the node's log",
        "2": None,
    }
    assert not grid.contains(b"secret-ward")
