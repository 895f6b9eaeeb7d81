"""Whatever one node says, or is told, the others' run goes on; and what is told does not give files away."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_grid import CASES, FakeGrid, Nodes, edited, tiny
from flwr.app import ConfigRecord, Error, Message, RecordDict
from PIL import Image

from fedssl.errors import ClientError, RunError
from fedssl.guard import Reply
from fedssl.runtimes.flower import client, client_app, words
from fedssl.runtimes.flower.awaited import awaited
from fedssl.runtimes.flower.codec import decode, encode
from fedssl.runtimes.flower.memory import STALE, NodeMemory
from fedssl.runtimes.flower.node import Node, Place
from fedssl.runtimes.flower.words import Refusal, Task, hello_in, put_hello, put_task, task_in
from fedssl.train import Stopped
from fedssl.tree import tensor

HUGE = 10**400
RUN = "0123456789abcdef" * 2


def _lines(nodes: Nodes) -> list[dict[str, Any]]:
    """The rounds log, which is JSON as everybody reads it: without NaN and Infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    text = (nodes.root / "flower/rounds.jsonl").read_text()
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def _clients(nodes: Nodes) -> list[str]:
    return list(json.loads((nodes.root / "flower/flower.json").read_text())["clients"])


# -- what a node says --


@pytest.mark.parametrize("case", [("fedca", "simclr", "dictionary = 12\nbeta = 0.0"), CASES["ccl"]], ids=lambda c: c[0])
def test_bad_rows_of_features_cost_themselves_alone(case: tuple[str, ...], nodes: Nodes) -> None:
    """Also where every client must have sent a sound upload."""
    experiment = tiny(*case, rounds=2)
    grid = nodes.grid(experiment)
    honest = grid.nodes[11]

    def spoiled(message: Message) -> Message | None:
        answer = honest(message)
        if message.metadata.message_type == "train" and answer is not None:
            upload = decode(answer.content)
            tensor(upload, "features")[0] = float("nan")
            for name, record in encode(upload).items():
                answer.content[name] = record
        return answer

    grid.nodes[11] = spoiled
    nodes.serve(experiment, grid, quorum=1.0)
    lines = _lines(nodes)
    assert len(lines) == 2
    for line in lines:
        assert [told["dropped"] for told in line["clients"]] == [None] * 3
        said = [told.get("rows_left_out") for told in line["clients"]]
        assert (said[0], said[2]) == (None, None)
        assert said[1].startswith("features: 1 of ")
        assert said[1].endswith(" rows left out, 1 not finite")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"metrics": {"seconds": 0}}, "its training has taken no time"),
        ({"metrics": {"seconds": 1e-300}}, "its training has taken no time"),
        ({"metrics": {"loss": HUGE}}, "1000000000000000000000000000000000000000… is no finite number"),
        ({"metrics": {"loss": float("nan")}}, "nan is no finite number"),
        ({"metrics": {"loss": 1e300}}, "1e+300 is no finite number"),
        ({"metrics": {"loss": "none"}}, "'none' is no finite number"),
        ({"metrics": {"loss": None}}, "None is no finite number"),
        ({"metrics": {"images": HUGE}}, "1000000000000000000000000000000000000000… is no number from 0 to"),
        ({"metrics": {"images": -16}}, "-16 is no number from 0 to"),
        ({"metrics": {"steps": 1.5}}, "1.5 is no number from 0 to"),
        ({"metrics": [1]}, "Metrics"),
        ({"images": HUGE}, "claims 10000"),
        ({"images": "y" * 2_000_000}, "claims 'yyyy"),
        ({"error": ["x"]}, "['x']"),
        ({"error": "\x1b[2J\nflower: round 9/9"}, r"\x1b[2J\nflower: round 9/9"),
        ({"notes": {"lam": HUGE}}, None),
        ({"notes": {"lam\n": 2.0, "is": True, "nan": float("nan"), "text": "x"}}, None),
        ({"notes": [1]}, None),
    ],
    ids=lambda value: str(value)[:40],
)
def test_no_reply_of_one_node_ends_the_run(changes: dict[str, Any], reason: str | None, nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr", rounds=2)
    grid = nodes.grid(experiment)
    grid.nodes[11] = edited(grid.nodes[11], "train", **changes)
    nodes.serve(experiment, grid)
    for line in _lines(nodes):
        dropped = [told["dropped"] for told in line["clients"]]
        assert (dropped[0], dropped[2], dropped[1] is None) == (None, None, reason is None)
        if reason is not None:
            assert reason in dropped[1]
            assert len(dropped[1]) <= 201
            assert dropped[1].isprintable()
        elif "notes" in line["clients"][1]:
            assert line["clients"][1]["notes"] == {"lam\\n": 2.0, "is": True}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"image": [10**9, 12, 12]}, "its hello makes no sense: 1000000000 is no number from 1 to 1024"),
        ({"image": [0, 0, 0]}, "its hello makes no sense: 0 is no number from 1 to 1024"),
        ({"image": [3, 12]}, "its hello makes no sense"),
        ({"image": [3, 24, 24]}, "left out 0: its images are (3, 24, 24), unlike most"),
        ({"image": [7, 12, 12]}, "its model is another: backbone"),
        ({"layout": []}, "its model is another: backbone"),
        ({"layout": [[["x"], [2], "weight"]]}, "its hello cannot be read (TypeError)"),
        ({"layout": [["x", 2, "weight"]]}, "its hello cannot be read (TypeError)"),
        ({"layout": [["\x1b[2J" * 999, [2], "weight"]]}, "its model is another: backbone"),
        ({"clients": {"..": 16}}, "'..' is no name for a client"),
        ({"clients": {"a\nrefused": 16}}, r"'a\nrefused' is no name for a client"),
        ({"clients": {"x" * 10**6: 16}}, "a client's name has at most 200 letters"),
        ({"clients": {"\N{GREEK SMALL LETTER ALPHA}" * 40: 16}}, "a client's name has at most 200 letters"),
        ({"clients": [7]}, "its hello cannot be read (AttributeError)"),
        ({"clients": {"0": HUGE}}, "its hello makes no sense: 1000"),
        ({"clients": {"0": 10**7 + 1}}, "its hello makes no sense: 10000001 is no number from 0 to 10000000"),
        ({"version": "v" * 10**6}, "it has fedssl vvvv"),
        ({"error": "\x1b[2J" * 10**5}, r'rejected node 10, which claims to be "0": \x1b[2J'),
    ],
    ids=lambda value: str(value)[:40],
)
def test_no_hello_of_one_node_keeps_the_others_from_beginning(
    changes: dict[str, Any], reason: str, nodes: Nodes
) -> None:
    """The one that is heard first."""
    experiment = tiny("fedavg", "simclr", rounds=1)
    grid = nodes.grid(experiment)
    grid.nodes[10] = edited(grid.nodes[10], "query.hello", **changes)
    said = nodes.serve(experiment, grid, clients=2)
    assert _clients(nodes) == ["1", "2"]
    [told] = [line for line in said if reason in line]
    assert len(told) < 450
    assert told.isprintable()


def test_a_node_without_clients_is_none(nodes: Nodes) -> None:
    place = Place("0", 0, 1, nodes.root / "data", nodes.root / "memory", "dealt", "cpu")
    hello = Node(tiny("fedavg", "simclr"), place).hello()
    assert hello_in(put_hello(hello)) == hello
    assert hello_in(put_hello(hello._replace(clients={}))) == Refusal("its hello makes no sense: no client lives there")


def test_whatever_the_server_makes_of_a_hello_is_a_refusal(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedssl import assemble

    build = assemble.build_method

    def scarce(experiment: Any, image: Any, device: Any) -> Any:
        if image == (3, 99, 99):
            raise MemoryError("no room for /srv/secret")
        return build(experiment, image, device)

    monkeypatch.setattr(assemble, "build_method", scarce)
    experiment = tiny("fedavg", "simclr", rounds=1)
    grid = nodes.grid(experiment)
    grid.nodes[10] = edited(grid.nodes[10], "query.hello", image=[3, 99, 99])
    said = nodes.serve(experiment, grid, clients=2)
    assert any("what it says of itself leads to an error (MemoryError)" in line for line in said)


def test_clients_that_disagree_about_the_shape_of_images_are_named(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr", rounds=1, clients=2)
    grid = nodes.grid(experiment)
    grid.nodes[11] = edited(grid.nodes[11], "query.hello", image=[3, 24, 24])
    with pytest.raises(RunError, match=r"1 of 2 .*images of \(3, 12, 12\) at 0; images of \(3, 24, 24\) at 1"):
        nodes.serve(experiment, grid)


@pytest.mark.parametrize("kind", ["train", "query.hello"])
def test_an_answer_that_flower_cannot_read_costs_nobody_elses(kind: str, nodes: Nodes) -> None:
    """Flower fails when it is asked for the answer, and has thrown away all those it was asked for with it."""
    experiment = tiny("fedavg", "simclr", rounds=2)

    class Failing(FakeGrid):
        def pull_messages(self, message_ids: Any) -> list[Message]:
            found = super().pull_messages(message_ids)
            if any(m.metadata.message_type == kind and m.metadata.src_node_id == 10 for m in found):
                raise ValueError("/srv/secret")
            return found

    said = nodes.serve(experiment, Failing(nodes.grid(experiment).nodes), clients=2 if kind == "query.hello" else 3)
    reason = "its answer cannot be read (ValueError)"
    if kind == "train":
        assert [told["dropped"] for line in _lines(nodes) for told in line["clients"]] == [reason, None, None] * 2
    else:
        assert _clients(nodes) == ["1", "2"]
        assert f"rejected node 10: {reason}" in said


def test_what_flower_says_is_cut_short_and_made_plain(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr", rounds=1)
    grid = nodes.grid(experiment)
    speak = grid.nodes[11]

    def fail(message: Message) -> Message | None:
        trains = message.metadata.message_type == "train"
        return Message(Error(0, "\x1b[2J" * 10**5), reply_to=message) if trains else speak(message)

    grid.nodes[11] = fail
    nodes.serve(experiment, grid)
    reason = _lines(nodes)[0]["clients"][1]["dropped"]
    assert reason.startswith(r"Flower says: \x1b[2J")
    assert reason.isprintable()
    assert len(reason) == 201


# -- what a node is told --


def _asked(**changes: Any) -> Message:
    task = Task(RUN, "0", 0, 0)
    content = put_task(RecordDict(), task)
    said = json.loads(content["fedssl"]["json"])
    content["fedssl"] = ConfigRecord({"json": json.dumps({**said, **changes})})
    message = Message(content, 10, "train")
    message.metadata.__dict__["_message_id"] = "asked"
    return message


@pytest.mark.parametrize(
    "changes",
    [
        *({"run": run} for run in ("..", ".", "", "../" * 10 + "0" * 2, "0" * 31 + "A", "/" * 32, 7)),
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
    with pytest.raises(ValueError, match="no "):
        task_in(_asked(**changes).content)
    task_in(_asked().content)  # which is one
    answer = nodes.grid(tiny("fedavg", "simclr")).nodes[10](_asked(**changes))
    assert json.loads(answer.content["fedssl"]["json"]) == {"error": "ValueError; its own log says more"}
    assert not (nodes.root / "memory").exists()


def test_a_node_keeps_no_model_under_another_clients_name(nodes: Nodes) -> None:
    place = Place("0", 0, 1, nodes.root / "data", nodes.root / "memory", "dealt", "cpu")
    node = Node(tiny("featarc", "simclr"), place)
    for work in (node.keep, node.train):
        with pytest.raises(ClientError, match='this node is client "0", not "1"'):
            work(Task(RUN, "1", 0, 0), {})
    assert not (nodes.root / "memory").exists()


def test_others_files_in_a_nodes_folder_stay(tmp_path: Path) -> None:
    memory = NodeMemory(tmp_path, Task(RUN, "a", 0, 0))
    for name in ("precious.tmp", "00009.0.remembered.tmp"):
        (memory.folder / name).touch()
    memory.write({})
    assert (memory.folder / "precious.tmp").exists()
    assert not (memory.folder / "00009.0.remembered.tmp").exists()


def test_settings_that_do_not_work_at_a_node_are_told_without_their_text(nodes: Nodes) -> None:
    """A cache among the images: the reason names both folders."""
    (nodes.root / "secret-ward/scans").mkdir(parents=True)
    for i in range(4):
        Image.fromarray(np.zeros((12, 12, 3), np.uint8)).save(nodes.root / f"secret-ward/scans/{i}.png")
    folder = {"data.name": "folder", "data.path": "scans", "data.size": 12, "data.layout": "flat"}
    experiment = tiny("fedavg", "simclr", clients=1, **{"guard.min_uploads": 1}).with_changes(
        {**folder, "data.cache": str(nodes.root / "secret-ward/scans/cache")}
    )
    app = client_app(experiment)
    place = {"images": "own", "data-dir": str(nodes.root / "secret-ward")}
    grid = FakeGrid({7: nodes.node(app, 7, "north", **place)})
    with pytest.raises(RunError, match="its settings do not work there; its own log says why"):
        nodes.serve(experiment, grid)
    assert not [data for data in grid.wire.values() if b"secret-ward" in data]


@pytest.mark.parametrize("where", ["encode", "decode", "task_in", "put_reply"])
def test_no_error_at_a_node_goes_out_with_its_text(
    where: str, nodes: Nodes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = getattr(client, where)

    def fail(*given: Any) -> Any:
        reply = given[-1]
        if where == "put_reply" and isinstance(reply, Reply) and reply.error is not None:
            return real(*given)
        raise OSError("/srv/secret-ward is full")

    monkeypatch.setattr(client, where, fail)
    experiment = tiny("fedavg", "simclr", rounds=1)
    grid = nodes.grid(experiment)
    with pytest.raises(RunError, match="no round had a sound upload"):
        nodes.serve(experiment, grid)
    assert [told["dropped"] for told in _lines(nodes)[0]["clients"]] == ["OSError; its own log says more"] * 3
    assert not [data for data in grid.wire.values() if b"secret-ward" in data]
    assert "/srv/secret-ward is full" in capsys.readouterr().err


def test_a_newer_attempt_stops_an_older_one(tmp_path: Path) -> None:
    orphan = NodeMemory(tmp_path, Task(RUN, "a", 3, 0))
    with awaited(words.MOST_NUMBER, orphan.mine) as stop:
        assert not stop.wait(1.5)
    NodeMemory(tmp_path, Task(RUN, "a", 4, 0))

    def train() -> None:
        with awaited(words.MOST_NUMBER, orphan.mine) as stop:
            if stop.wait(20):
                raise Stopped

    with pytest.raises(ClientError, match=STALE):
        train()
