"""What can go wrong between a server and its nodes, each with its reason in the log."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from fake_grid import FakeGrid, Nodes, tiny
from flwr.app import ConfigRecord, Message

import fedssl
from fedssl.errors import ClientError, ConfigError, RunError
from fedssl.report.rounds import read_rounds
from fedssl.runtimes.flower import client_app, words
from fedssl.runtimes.flower.node import Node
from fedssl.store import Store
from fedssl.tree import dumps

Handler = Callable[[Message], Message | None]


def _dropped(nodes: Nodes, folder: str = "flower") -> list[dict[str, str | None]]:
    lines = read_rounds(nodes.root / folder / "rounds.jsonl")
    return [{client["client"]: client["dropped"] for client in line["clients"]} for line in lines]


def _bits(nodes: Nodes, folder: str = "flower") -> dict[str, bytes]:
    snapshot = Store(nodes.root / folder).load(lambda line: None)
    assert snapshot is not None
    return {site: dumps(tree) for site, tree in snapshot.sites.items()}


def _trains(message: Message) -> bool:
    return message.metadata.message_type == "train"


def _edited(handler: Handler, **changes: Any) -> Handler:
    """A node whose replies say something else than it means."""

    def lie(message: Message) -> Message | None:
        answer = handler(message)
        if _trains(message) and answer is not None:
            said = json.loads(answer.content["fedssl"]["json"])
            answer.content["fedssl"] = ConfigRecord({"json": json.dumps({**said, **changes})})
        return answer

    return lie


# -- joining --


def test_too_few_clients_end_the_run_when_the_time_is_up(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr")
    grid = nodes.grid(experiment)
    del grid.nodes[11]
    began = time.monotonic()
    with pytest.raises(RunError, match=r"only 2 of 3 clients joined within 0\.2 s"):
        nodes.serve(experiment, grid)
    assert time.monotonic() - began < 10
    assert not [message for message in grid.sent if _trains(message)]


def test_two_nodes_with_one_name_are_not_both_taken(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr")
    grid = nodes.grid(experiment)
    grid.nodes[12] = nodes.node(client_app(experiment), 12, "1")
    with pytest.raises(RunError, match='another node with client-id "1" is connected'):
        nodes.serve(experiment, grid)


def test_another_architecture_is_refused_before_training(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr")
    grid = nodes.grid(experiment)
    grid.nodes[12] = nodes.node(client_app(experiment.with_changes({"method.hidden": 24})), 12, "2")
    with pytest.raises(RunError, match=r"its model is another: projector\S+ has shape \(24, .*\), expected \(16, "):
        nodes.serve(experiment, grid)
    assert not [message for message in grid.sent if _trains(message)]


def test_another_version_is_refused(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = tiny("fedavg", "simclr")
    grid = nodes.grid(experiment)
    hello = Node.hello
    monkeypatch.setattr(
        Node, "hello", lambda self: hello(self)._replace(version="0.0.9") if self.client == "1" else hello(self)
    )
    with pytest.raises(RunError, match=r"it has fedssl 0\.0\.9, the server"):
        nodes.serve(experiment, grid)


def test_a_node_without_its_images_says_so_without_naming_files(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr")
    grid = nodes.grid(experiment)
    grid.nodes[12] = nodes.node(client_app(experiment), 12, "2", **{"data-dir": str(nodes.root / "secret-ward")})
    with pytest.raises(RunError, match="its images cannot be read; its own log says why"):
        nodes.serve(experiment, grid)
    assert not [data for data in grid.wire.values() if b"secret-ward" in data]


def test_settings_are_checked(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr")
    with pytest.raises(ConfigError, match=r'unknown key "tool\.flwr\.app\.config\.quorom", did you mean "quorum"'):
        nodes.serve(experiment, nodes.grid(experiment), quorom=1)


# -- rounds --


def test_a_client_that_is_silent_is_left_out_when_the_time_is_up(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr")
    grid = nodes.grid(experiment)
    speak = grid.nodes[11]
    grid.nodes[11] = lambda message: None if _trains(message) else speak(message)
    began = time.monotonic()
    nodes.serve(experiment, grid, round_timeout=0.5)
    assert 1.5 <= time.monotonic() - began < 20
    assert _dropped(nodes) == [{"0": None, "1": "has not answered within 0.5 s", "2": None}] * 3


def test_too_few_answers_fail_the_round_and_change_nothing(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr")
    grid = nodes.grid(experiment)
    for node in (11, 12):
        grid.nodes[node] = lambda message, speak=grid.nodes[node]: None if _trains(message) else speak(message)
    with pytest.raises(RunError, match="no sound upload in 3 rounds"):
        nodes.serve(experiment, grid, round_timeout=0.3, quorum=0.6)
    assert _dropped(nodes)[0] == {
        "0": "only 1 of 3 clients have answered; 2 must",
        "1": "has not answered within 0.3 s",
        "2": "has not answered within 0.3 s",
    }
    first = Store(nodes.root / "flower").checkpoints / "00003.safetensors"
    assert first.read_bytes() == (Store(nodes.root / "flower").checkpoints / "00002.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"round": 0}, "answers round 0, asked was 1"),
        ({"attempt": 3}, "answers attempt 3, asked was 0"),
        ({"client": "0"}, "answers client '0', asked was '1'"),
        ({"run": "other"}, "answers run 'other'"),
        ({"images": -5}, "claims -5 images"),
        ({"images": "many"}, "claims 'many' images"),
        ({"error": "x" * 9999}, "x" * 500),
        ({"metrics": {"loss": "none"}}, ""),
        ({"error": "no electricity"}, "no electricity"),
    ],
)
def test_a_reply_to_something_else_is_dropped(changes: dict[str, Any], reason: str, nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr", rounds=2)
    grid = nodes.grid(experiment)
    grid.nodes[11] = _edited(grid.nodes[11], **changes)
    nodes.serve(experiment, grid)
    last = _dropped(nodes)[-1]
    assert (last["0"], last["2"]) == (None, None)
    assert last["1"] is not None
    assert last["1"].startswith(reason)
    assert len(last["1"]) <= 500


def test_a_second_answer_is_not_heard(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr")
    nodes.serve(experiment, nodes.grid(experiment), "once")

    class Twice(FakeGrid):
        def pull_messages(self, message_ids: Any) -> list[Message]:
            found = super().pull_messages(message_ids)
            return [*found, *found]

    nodes.serve(experiment, Twice(nodes.grid(experiment).nodes), "twice")
    assert _bits(nodes, "once") == _bits(nodes, "twice")
    assert _dropped(nodes, "twice") == [dict.fromkeys("012")] * 3


def test_a_node_that_is_gone_is_left_out_and_taken_back(nodes: Nodes) -> None:
    """In the second round it is not connected; in the third it is back as another node, under its old name."""
    experiment = tiny("fedavg", "simclr", rounds=4)
    grid = nodes.grid(experiment)
    app = client_app(experiment)

    def push(message: Message) -> None:
        if _trains(message) and message.metadata.dst_node_id == 12:
            if message.metadata.group_id == "0":
                grid.nodes.pop(11, None)
            if message.metadata.group_id == "1":
                grid.nodes[21] = nodes.node(app, 21, "1")

    grid.on_push = push
    nodes.serve(experiment, grid)
    first, *rest = [line["1"] for line in _dropped(nodes)]
    assert first == "Flower says: node unavailable"
    assert rest == ["its node is not connected", None, None]


def test_whatever_a_client_fails_with_the_others_go_on(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = tiny("fedavg", "simclr")
    train = Node.train

    def fail(self: Node, task: words.Task, message: Any) -> Any:
        if task.client == "0":
            raise ClientError("no electricity")
        if task.client == "1":
            raise OSError("/srv/secret-ward/7.png is gone")
        return train(self, task, message)

    monkeypatch.setattr(Node, "train", fail)
    grid = nodes.grid(experiment)
    nodes.serve(experiment, grid, quorum=0.3)
    assert _dropped(nodes)[-1] == {"0": "no electricity", "1": "OSError; its own log says more", "2": None}
    assert not [data for data in grid.wire.values() if b"secret-ward" in data]


# -- what goes over the wire --


def test_equal_messages_are_sent_once(nodes: Nodes) -> None:
    """Three clients get one model: its 4 bytes for each weight cross once a round, and three uploads do."""
    experiment = tiny("fedavg", "simclr", rounds=1)
    grid = nodes.grid(experiment)
    nodes.serve(experiment, grid)
    row = max(len(data) for data in grid.wire.values())
    assert sum(len(data) == row for data in grid.wire.values()) == 4


@pytest.mark.parametrize("method", ["simclr", "byol"])
def test_nothing_of_the_images_is_sent(method: str, nodes: Nodes) -> None:
    """Neither pixels as they are or as floats, nor labels, nor the names of files and folders."""
    import numpy as np

    experiment = tiny("fedavg", method)
    grid = nodes.grid(experiment)
    nodes.serve(experiment, grid)
    everything = list(grid.wire.values())
    assert sum(map(len, everything)) > 10_000
    with np.load(nodes.root / "data/tiny.npz") as data:
        for image in data["x_train"]:
            rows = image.transpose(2, 0, 1)[0, 0]
            for canary in (image.tobytes()[:24], rows.tobytes(), (rows / np.float32(255)).astype("<f4").tobytes()):
                assert not [chunk for chunk in everything if canary in chunk]
        for labels in (data["y_train"], data["y_train"].astype(np.int32), data["y_train"].astype(np.uint8)):
            assert not [chunk for chunk in everything if labels[:12].tobytes() in chunk]
    for name in (b"tiny.npz", str(nodes.root).encode(), b"x_train"):
        assert not [chunk for chunk in everything if name in chunk]


# -- a server that ends and begins again --


class Killed(BaseException):
    pass


@pytest.mark.parametrize("name", ["fedavg", "fedema"])
@pytest.mark.parametrize("after", [1, 4, 5, 8])
def test_a_server_killed_at_any_message_goes_on_to_the_same_bits(name: str, after: int, nodes: Nodes) -> None:
    """Killed before it sends its message number `after`; nodes have trained, and remember, what nobody took up."""
    experiment = tiny(name, "byol")
    nodes.serve(experiment, nodes.grid(experiment), "whole")
    grid = nodes.grid(experiment, **{"memory-dir": str(nodes.root / "other-memory")})
    count = 0

    def push(message: Message) -> None:
        nonlocal count
        count += _trains(message)
        if count > after:
            raise Killed

    grid.on_push = push
    with pytest.raises(Killed):
        nodes.serve(experiment, grid)
    for message in list(grid.waiting.values()):  # whoever was asked goes on with it
        grid.nodes[message.metadata.dst_node_id](message)
    grid.on_push = lambda message: None
    said = nodes.serve(experiment, grid)
    assert any("going on after round" in line for line in said)
    assert _bits(nodes, "whole") == _bits(nodes)
    assert json.loads((nodes.root / "flower/flower.json").read_text())["starts"] == [0, (after - 1) // 3]


def test_other_images_are_not_gone_on_with(nodes: Nodes) -> None:
    import numpy as np

    experiment = tiny("fedavg", "simclr", rounds=1)
    nodes.serve(experiment, nodes.grid(experiment))
    with np.load(nodes.root / "data/tiny.npz") as data:
        arrays = dict(data)
    arrays["x_train"][0] += 1
    np.savez(nodes.root / "data/tiny.npz", **arrays)
    longer = experiment.with_changes({"rounds": 2})  # another node, in Flower's way: a process of its own
    nodes.serve(longer, nodes.grid(longer), quorum=0.3)
    reasons = list(_dropped(nodes)[-1].values())
    assert sorted(reasons, key=str) == [
        None,
        None,
        "its images are not those it had when it first took part in this run",
    ]


def test_a_finished_run_asks_nobody(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr")
    nodes.serve(experiment, nodes.grid(experiment))
    nodes.serve(experiment, FakeGrid({}))


def test_a_stranger_is_refused_when_a_run_goes_on(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr", **{"partition.name": "iid"})
    nodes.serve(experiment, nodes.grid(experiment))
    longer = experiment.with_changes({"rounds": 4})
    grid = nodes.grid(longer)
    grid.nodes[13] = nodes.node(client_app(longer), 13, "x", images="own")
    said = nodes.serve(longer, grid)
    assert any('"x" was not there when the run began' in line for line in said)


def test_peers_are_relayed_and_it_is_said(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr", **{"topology.name": "cycle"})
    local = fedssl.run(experiment, nodes.root / "local", "cpu", nodes.root / "data", quiet=True)
    said = nodes.serve(experiment, nodes.grid(experiment))
    assert any("relayed by the server" in line for line in said)
    assert _bits(nodes) == _bits(nodes, local.dir.name)
