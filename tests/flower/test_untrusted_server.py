"""A node is safe from malformed tasks, and its answers contain no file names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from error_messages import raises
from fake_grid import FakeGrid, Nodes, tiny
from flwr.app import ConfigRecord, Message, RecordDict
from PIL import Image

from fedssl.core.errors import ClientError, RunError
from fedssl.engine.uploads.records import Reply
from fedssl.flower import client_app, clientapp, messages
from fedssl.flower.deadline import training_deadline
from fedssl.flower.messages import RoundTask, pack_task, unpack_task
from fedssl.flower.node import Node
from fedssl.flower.node_memory import SUPERSEDED, NodeMemory
from fedssl.training.trainer import Stopped

RUN = "0123456789abcdef" * 2
INVALID_RUNS = ("..", ".", "", "../" * 10 + "0" * 2, "0" * 31 + "A", "/" * 32, 7)


def _task_message(**changes: Any) -> Message:
    task = RoundTask(RUN, "0", 0, 0)
    content = pack_task(RecordDict(), task)
    values = json.loads(content["fedssl"]["json"])
    content["fedssl"] = ConfigRecord({"json": json.dumps({**values, **changes})})
    message = Message(content, 10, "train")
    message.metadata.__dict__["_message_id"] = "asked"
    return message


@pytest.mark.parametrize(
    "changes",
    [
        *({"run": run} for run in INVALID_RUNS),
        *({"client": client} for client in ("..", ".", "", "a\n", 7)),
        {"round": -1},
        {"round": "0/../../x"},
        {"starts": ["x"]},
        {"attempt": True},
        {"until": "now"},
    ],
    ids=str,
)
def test_no_task_leads_out_of_a_nodes_folder(changes: dict[str, Any], nodes: Nodes) -> None:
    [key] = changes
    with pytest.raises(ValueError, match=rf"^{key}\b.*: .*, got "):
        unpack_task(_task_message(**changes).content)
    unpack_task(_task_message().content)  # the unchanged task is valid
    answer = nodes.grid(tiny("fedavg", "simclr")).nodes[10](_task_message(**changes))
    assert json.loads(answer.content["fedssl"]["json"]) == {
        "error": "ValueError; see the node's log"
    }
    assert not (nodes.root / "memory").exists()


def test_a_node_works_only_for_its_own_clients(nodes: Nodes) -> None:
    node = Node(tiny("featarc", "simclr"), nodes.config("0"))
    for work in (node.save_own_model, node.train):
        with raises(ClientError):
            work(RoundTask(RUN, "1", 0, 0), {})
    assert not (nodes.root / "memory").exists()


def test_other_files_in_a_nodes_folder_are_kept(tmp_path: Path) -> None:
    memory = NodeMemory(tmp_path, RoundTask(RUN, "a", 0, 0))
    for name in ("precious.tmp", "00009.0.remembered.tmp"):
        (memory.folder / name).touch()
    memory.write({})
    assert (memory.folder / "precious.tmp").exists()
    assert not (memory.folder / "00009.0.remembered.tmp").exists()


def test_settings_that_fail_at_a_node_are_reported_without_details(nodes: Nodes) -> None:
    """The cache is inside the folder of images; the error names both folders."""
    (nodes.root / "secret-ward/scans").mkdir(parents=True)
    for i in range(4):
        image = Image.fromarray(np.zeros((12, 12, 3), np.uint8))
        image.save(nodes.root / f"secret-ward/scans/{i}.png")
    folder = {"data.name": "folder", "data.path": "scans", "data.size": 12, "data.layout": "flat"}
    experiment = tiny("fedavg", "simclr", clients=1, **{"guard.min_uploads": 1}).with_changes(
        {**folder, "data.cache": str(nodes.root / "secret-ward/scans/cache")}
    )
    app = client_app(experiment)
    place = {"images": "own", "data-dir": str(nodes.root / "secret-ward")}
    grid = FakeGrid({7: nodes.node(app, 7, "north", **place)})
    with raises(RunError):
        nodes.serve(experiment, grid)
    assert not grid.contains(b"secret-ward")


@pytest.mark.parametrize("where", ["encode", "decode", "unpack_task", "pack_reply"])
def test_the_text_of_an_error_at_a_node_is_not_sent(
    where: str, nodes: Nodes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = getattr(clientapp, where)

    def fail(*arguments: Any) -> Any:
        reply = arguments[-1]
        if where == "pack_reply" and isinstance(reply, Reply) and reply.error is not None:
            return real(*arguments)
        raise OSError("/srv/secret-ward is full")

    monkeypatch.setattr(clientapp, where, fail)
    experiment = tiny("fedavg", "simclr", rounds=1)
    grid = nodes.grid(experiment)
    with raises(RunError):
        nodes.serve(experiment, grid)
    clients = nodes.strict_rounds()[0]["clients"]
    assert [client["dropped"] for client in clients] == ["OSError; see the node's log"] * 3
    assert not grid.contains(b"secret-ward")
    assert "/srv/secret-ward is full" in capsys.readouterr().err


def test_a_newer_attempt_stops_an_older_one(tmp_path: Path) -> None:
    orphan = NodeMemory(tmp_path, RoundTask(RUN, "a", 3, 0))
    with training_deadline(messages.MAX_NOTE, orphan.holds_claim) as stop:
        assert not stop.wait(1.5)
    NodeMemory(tmp_path, RoundTask(RUN, "a", 4, 0))

    def train() -> None:
        with training_deadline(messages.MAX_NOTE, orphan.holds_claim) as stop:
            if stop.wait(20):
                raise Stopped

    with pytest.raises(ClientError, match=SUPERSEDED):
        train()
