"""A server that was stopped resumes its run."""

from __future__ import annotations

import json

import numpy as np
import pytest
from error_messages import raises
from fake_grid import FakeGrid, Nodes, edited, tiny, trains
from flwr.app import Message

import fedssl
from fedssl.core.errors import ConfigError, RunError
from fedssl.flower import client_app, messages


class Killed(BaseException):
    """Simulates the end of the server's process."""


@pytest.mark.parametrize("name", ["fedavg", "fedema"])
@pytest.mark.parametrize("after", [1, 4, 5, 8])
def test_a_server_killed_at_any_message_resumes_to_the_same_bits(
    name: str, after: int, nodes: Nodes
) -> None:
    """Killed before it sends message number `after`; nodes have trained rounds that are lost."""
    experiment = tiny(name, "byol")
    nodes.serve(experiment, nodes.grid(experiment), "whole")
    grid = nodes.grid(experiment, **{"memory-dir": str(nodes.root / "other-memory")})
    count = 0

    def push(message: Message) -> None:
        nonlocal count
        count += trains(message)
        if count > after:
            raise Killed

    grid.on_push = push
    with pytest.raises(Killed):
        nodes.serve(experiment, grid)
    for message in list(grid.waiting.values()):  # nodes finish their tasks
        grid.nodes[message.metadata.dst_node_id](message)
    grid.on_push = lambda message: None
    lines = nodes.serve(experiment, grid)
    assert any("resuming after round" in line for line in lines)
    assert nodes.bits("whole") == nodes.bits()
    record = json.loads((nodes.root / "flower/flower.json").read_text())
    assert record["starts"] == [0, (after - 1) // 3]


def test_a_run_without_its_record_is_not_resumed(nodes: Nodes) -> None:
    """Its clients would be treated as new ones, and their state would be lost silently."""
    short = tiny("fedema", "byol", rounds=1)
    longer = tiny("fedema", "byol", rounds=2)
    nodes.serve(short, nodes.grid(short))
    (nodes.root / "flower/flower.json").unlink()
    (nodes.root / "flower/integrity.jsonl").unlink()
    fedssl.run(short, nodes.root / "local", "cpu", nodes.root / "data", quiet=True)
    for folder in ("flower", "local"):
        grid = nodes.grid(longer)
        with raises(RunError):
            nodes.serve(longer, grid, folder)
        assert not grid.sent
        assert len(nodes.dropped(folder)) == 1


def test_a_run_on_flower_is_not_resumed_without_flower(nodes: Nodes) -> None:
    short = tiny("fedema", "byol", rounds=1)
    longer = tiny("fedema", "byol", rounds=2)
    nodes.serve(short, nodes.grid(short))
    with raises(ConfigError):
        fedssl.run(longer, nodes.root / "flower", "cpu", nodes.root / "data", quiet=True)
    assert len(nodes.dropped()) == 1


def test_a_damaged_record_is_repaired_or_reported(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr", rounds=1)
    nodes.serve(experiment, nodes.grid(experiment))
    path = nodes.root / "flower/flower.json"
    intact = path.read_text()
    for broken in ("", "[]", "{}", intact.replace("0", "1", 1)):
        path.write_text(broken)
        nodes.serve(experiment, nodes.grid(experiment))
        assert path.read_text() == intact
    (nodes.root / "flower/integrity.jsonl").unlink()  # as of an earlier version
    for broken in ("", "[]", "{}"):
        path.write_text(broken)
        with raises(RunError):
            nodes.serve(experiment, nodes.grid(experiment))


def test_a_start_that_failed_does_not_decide_who_takes_part(nodes: Nodes) -> None:
    """It ended before the first checkpoint, with a list of clients and another seed."""
    experiment = tiny("fedavg", "simclr", rounds=1)
    folder = nodes.root / "flower"
    folder.mkdir()
    (folder / "experiment.toml").write_text(experiment.with_changes({"seed": 7}).to_toml())
    (folder / "flower.json").write_text(
        '{"run": "r", "starts": [0], "clients": ["x"], "image": [1, 2, 2], "kept": {}}'
    )
    nodes.serve(experiment, nodes.grid(experiment))
    assert len(nodes.dropped()) == 1


def test_clients_make_their_own_models_when_the_server_or_they_were_away(nodes: Nodes) -> None:
    """The server is killed before it has asked any client; then client 1 is away; then only client
    1 is asked; then all have their models; a longer run makes new ones."""
    experiment = tiny("featarc", "simclr", rounds=1)
    grid = nodes.grid(experiment)
    node = grid.nodes[11]

    def clients_with_model() -> list[str]:
        models = (nodes.root / "memory").glob("*/*/backbone.safetensors")
        return sorted(path.parts[-3] for path in models)

    def asked() -> list[int]:
        receivers = grid.receivers(messages.KEEP)
        grid.sent.clear()
        return receivers

    def kill(message: Message) -> None:
        if message.metadata.message_type == messages.KEEP:
            raise Killed

    grid.on_push = kill
    with pytest.raises(Killed):
        nodes.serve(experiment, grid)
    assert clients_with_model() == []
    grid.on_push = lambda message: None
    del grid.nodes[11]
    lines = nodes.serve(experiment, grid)
    assert "client 1 has not stored its own model: its node is not connected" in lines
    assert asked() == [10, 12]
    assert clients_with_model() == ["0", "2"]
    grid.nodes[11] = node
    nodes.serve(experiment, grid)
    assert asked() == [11]
    assert clients_with_model() == ["0", "1", "2"]
    nodes.serve(experiment, FakeGrid({}))
    longer = experiment.with_changes({"rounds": 2})
    grid = nodes.grid(longer)
    nodes.serve(longer, grid)
    assert asked() == [10, 11, 12]


def test_a_client_with_other_images_does_not_resume(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr", rounds=1)
    nodes.serve(experiment, nodes.grid(experiment))
    with np.load(nodes.root / "data/tiny.npz") as data:
        arrays = dict(data)
    arrays["x_train"][0] += 1
    np.savez(nodes.root / "data/tiny.npz", **arrays)
    longer = experiment.with_changes({"rounds": 2})  # another process, as with Flower
    nodes.serve(longer, nodes.grid(longer), quorum=0.3)
    reasons = list(nodes.dropped()[-1].values())
    assert sorted(reasons, key=str) == [
        None,
        None,
        "its images are not those it had when it first took part in this run",
    ]


def test_a_finished_run_sends_no_messages(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr")
    nodes.serve(experiment, nodes.grid(experiment))
    grid = FakeGrid({})
    nodes.serve(experiment, grid)
    assert not grid.sent


def test_a_new_client_is_rejected_when_a_run_resumes(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr", **{"partition.name": "iid"})
    nodes.serve(experiment, nodes.grid(experiment))
    longer = experiment.with_changes({"rounds": 4})
    grid = nodes.grid(longer)
    grid.nodes[13] = nodes.node(client_app(longer), 13, "x", images="own")
    lines = nodes.serve(longer, grid)
    assert any('"x" is not one of the clients the run began with' in line for line in lines)


def test_a_site_that_has_lost_its_images_is_rejected_when_a_run_resumes(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr", rounds=1)
    nodes.serve(experiment, nodes.grid(experiment))
    longer = experiment.with_changes({"rounds": 2})
    grid = nodes.grid(longer)
    grid.nodes[11] = edited(grid.nodes[11], "query.hello", clients={"1": 0})
    lines = nodes.serve(longer, grid, round_timeout=0.5)
    assert any('"1" had images when the run began, and has none now' in line for line in lines)
    assert nodes.dropped()[-1] == {"0": None, "1": "its node is not connected", "2": None}


def test_without_a_model_on_the_server_no_picture_is_drawn(nodes: Nodes) -> None:
    """With FedBN, each client's model stays on its node; the server has labelled images."""
    experiment = tiny("fedbn", "simclr", rounds=1, **{"probe.picture": True})
    nodes.serve(experiment, nodes.grid(experiment), data_dir=str(nodes.root / "data"))
    results = json.loads((nodes.root / "flower/results.json").read_text())
    assert results["models"] == 0
    assert results["table"] == {}
    assert not (nodes.root / "flower/picture.png").exists()
