"""What can go wrong between a server and its nodes, each with its reason in the log."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest
from fake_grid import CASES, FakeGrid, Nodes, edited, tiny
from flwr.app import Error, Message

import fedssl
from fedssl.errors import ClientError, ConfigError, RunError
from fedssl.report.rounds import read_rounds
from fedssl.runtimes.flower import client_app, members, words
from fedssl.runtimes.flower.node import Node
from fedssl.store import Store
from fedssl.tree import dumps


def _dropped(nodes: Nodes, folder: str = "flower") -> list[dict[str, str | None]]:
    lines = read_rounds(nodes.root / folder / "rounds.jsonl")
    return [{client["client"]: client["dropped"] for client in line["clients"]} for line in lines]


def _bits(nodes: Nodes, folder: str = "flower") -> dict[str, bytes]:
    snapshot = Store(nodes.root / folder).load(lambda line: None)
    assert snapshot is not None
    return {site: dumps(tree) for site, tree in snapshot.sites.items()}


def _trains(message: Message) -> bool:
    return message.metadata.message_type == "train"


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


def test_a_node_for_which_no_client_is_left_says_so(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr", clients=1, **{"guard.min_uploads": 1})
    said = nodes.serve(experiment, nodes.dealt(experiment, 2))
    assert "rejected node 11: more nodes than clients: none is left for node 1 of 2" in said


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
        Node, "hello", lambda self: hello(self)._replace(version="0.0.9") if "1" in self.shards else hello(self)
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


def test_a_node_that_was_refused_is_asked_again(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its disk was not there yet when it was first asked; nobody restarts it. The reason is told once."""
    monkeypatch.setattr(members, "ASK_AGAIN", 0.05)
    experiment = tiny("fedavg", "simclr", rounds=1)
    grid = nodes.grid(experiment)
    speak, asked = grid.nodes[11], 0

    def later(message: Message) -> Message | None:
        nonlocal asked
        asked += message.metadata.message_type == words.HELLO
        return speak(message) if asked > 2 else Message(Error(0, "hiccup"), reply_to=message)

    grid.nodes[11] = later
    said = nodes.serve(experiment, grid, join_timeout=10)
    assert _dropped(nodes) == [dict.fromkeys("012")]
    assert asked == 3
    assert said.count("rejected node 11: Flower says: hiccup") == 1


def test_a_node_that_comes_back_as_somebody_else_is_not_asked_to_train(nodes: Nodes) -> None:
    """It is away in the second round, and back in the third under a name that was not there when the run began."""
    experiment = tiny("fedavg", "simclr", rounds=4)
    grid = nodes.grid(experiment)

    def push(message: Message) -> None:
        if _trains(message) and message.metadata.dst_node_id == 12:
            if message.metadata.group_id == "0":
                speak[0] = grid.nodes.pop(11)
            if message.metadata.group_id == "1":
                grid.nodes[11] = edited(speak[0], words.HELLO, clients={"x": 16})

    speak = [grid.nodes[11]]
    grid.on_push = push
    nodes.serve(experiment, grid)
    asked = [message.metadata.group_id for message in grid.sent if message.metadata.dst_node_id == 11]
    assert asked.count("0") == 1
    assert not {"1", "2", "3"} & set(asked)
    assert [line["1"] for line in _dropped(nodes)][1:] == ["its node is not connected"] * 3


@pytest.mark.parametrize(("claims", "reason"), [("1", 'registered with the name "2"'), ("2", None)])
def test_a_key_that_was_registered_with_a_name_has_that_name(claims: str, reason: str | None, nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr", rounds=1, clients=2)
    grid = nodes.grid(experiment.with_changes({"clients": 3}))
    del grid.nodes[11]
    grid.names |= {10: "0", 12: "2"}
    grid.nodes[12] = edited(grid.nodes[12], words.HELLO, clients={claims: 16})
    if reason is None:
        nodes.serve(experiment, grid)
    else:
        with pytest.raises(RunError, match=reason):
            nodes.serve(experiment, grid)


def test_a_name_that_a_key_was_registered_with_is_nobody_elses(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr", rounds=1)
    grid = nodes.grid(experiment)
    grid.names |= {10: "0", 11: "1", 12: "2"}
    grid.nodes[9] = nodes.node(client_app(experiment), 9, "2")  # it is heard first
    said = nodes.serve(experiment, grid)
    assert 'rejected node 9, which claims to be "2": another node\'s key was registered with the name "2"' in said
    assert [m.metadata.dst_node_id for m in grid.sent if _trains(m)] == [10, 11, 12]


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
    with pytest.raises(RunError, match="3 rounds in a row failed"):
        nodes.serve(experiment, grid, round_timeout=0.3, quorum=0.6)
    assert _dropped(nodes)[0] == {
        "0": "only 1 of 3 clients sent a valid upload; 2 are required (quorum)",
        "1": "has not answered within 0.3 s",
        "2": "has not answered within 0.3 s",
    }
    first = Store(nodes.root / "flower").checkpoints / "00003.safetensors"
    assert first.read_bytes() == (Store(nodes.root / "flower").checkpoints / "00002.safetensors").read_bytes()


def test_uploads_that_are_not_sound_make_no_quorum(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr", rounds=1)
    grid = nodes.grid(experiment)
    grid.nodes[11] = edited(grid.nodes[11], "train", images=-5)
    with pytest.raises(RunError, match="no round had a sound upload"):
        nodes.serve(experiment, grid, quorum=1.0)
    missed = "only 2 of 3 clients sent a valid upload; 3 are required (quorum)"
    assert _dropped(nodes) == [{"0": missed, "1": "claims -5 images", "2": missed}]


def test_nobody_waits_for_a_quorum_that_is_out_of_reach(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr", rounds=1)
    grid = nodes.grid(experiment)
    speak = grid.nodes[12]
    grid.nodes[11] = edited(grid.nodes[11], "train", error="no electricity")
    grid.nodes[12] = lambda message: None if _trains(message) else speak(message)
    began = time.monotonic()
    with pytest.raises(RunError, match="no round had a sound upload"):
        nodes.serve(experiment, grid, quorum=1.0, round_timeout=60)
    assert time.monotonic() - began < 30
    assert [line["2"] for line in _dropped(nodes)] == [
        "not waited for: the round cannot get the 3 valid uploads it needs"
    ]


def test_a_round_begins_when_as_many_are_connected_as_must_answer(nodes: Nodes) -> None:
    """After the first round two of three are gone for twenty looks; three failed rounds would have ended the run."""
    experiment = tiny("fedavg", "simclr")

    class Flickering(FakeGrid):
        away = 0

        def get_nodes(self) -> list[Any]:
            self.away -= 1
            found = super().get_nodes()
            return [found[0]] if self.away > 0 else found

    grid = Flickering(nodes.grid(experiment).nodes)

    def push(message: Message) -> None:
        if _trains(message) and message.metadata.dst_node_id == 12 and message.metadata.group_id == "0":
            grid.away = 20

    grid.on_push = push
    nodes.serve(experiment, grid, quorum=0.6)
    assert _dropped(nodes) == [dict.fromkeys("012")] * 3


def test_a_round_begins_when_the_minimum_of_uploads_is_connected(nodes: Nodes) -> None:
    """One of two sites is away for twenty looks. A quorum of 0.5 is one site, a merged model needs two."""
    experiment = tiny("fedavg", "simclr", clients=2)

    class Flickering(FakeGrid):
        away = 0

        def get_nodes(self) -> list[Any]:
            self.away -= 1
            connected = super().get_nodes()
            return connected[:1] if self.away > 0 else connected

    grid = Flickering(nodes.grid(experiment).nodes)

    def push(message: Message) -> None:
        if _trains(message) and message.metadata.dst_node_id == 11 and message.metadata.group_id == "0":
            grid.away = 20

    grid.on_push = push
    nodes.serve(experiment, grid, quorum=0.5)
    assert _dropped(nodes) == [dict.fromkeys("01")] * 3


def test_a_client_that_is_too_slow_stops_when_time_is_up(nodes: Nodes) -> None:
    """A node does one thing after another: what nobody waits for would keep it from the next round."""
    experiment = tiny("fedavg", "simclr", rounds=1, **{"train.epochs": 1_000_000})
    grid = nodes.grid(experiment)
    began = time.monotonic()
    with pytest.raises(RunError, match="no round had a sound upload"):
        nodes.serve(experiment, grid, round_timeout=2.0, quorum=0)
    assert time.monotonic() - began < 30
    reasons = list(_dropped(nodes)[0].values())  # one after another here, so two have never begun
    assert reasons[0] == "the round's time is up, so it has stopped training"
    assert all(str(reason).startswith("the round's time was up before this client began") for reason in reasons[1:])


def test_an_answer_in_time_does_not_expire_before_its_turn(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr", rounds=1)
    grid = nodes.grid(experiment)
    nodes.serve(experiment, grid, round_timeout=100)
    assert {message.metadata.ttl for message in grid.sent if _trains(message)} == {800}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"round": 0}, "answers round 0, asked was 1"),
        ({"attempt": 3}, "answers attempt 3, asked was 0"),
        ({"client": "0"}, "answers client '0', asked was '1'"),
        ({"run": "other"}, "answers run 'other'"),
        ({"images": -5}, "claims -5 images"),
        ({"images": "many"}, "claims 'many' images"),
        ({"images": 10**6}, "claims 1000000 images, but declared 16 when it joined"),
        ({"error": "x" * 9999}, "x" * 200 + "…"),
        ({"error": "no electricity"}, "no electricity"),
    ],
)
def test_a_reply_to_something_else_is_dropped(changes: dict[str, Any], reason: str, nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr", rounds=2)
    grid = nodes.grid(experiment)
    grid.nodes[11] = edited(grid.nodes[11], "train", **changes)
    nodes.serve(experiment, grid)
    last = _dropped(nodes)[-1]
    assert (last["0"], last["2"]) == (None, None)
    assert last["1"] is not None
    assert last["1"].startswith(reason)
    assert len(last["1"]) <= 201


def test_a_client_that_comes_back_has_as_many_images_as_before(nodes: Nodes) -> None:
    """Gone in the second round, it joins again with another number, and stands by it in what it sends."""
    experiment = tiny("fedavg", "simclr", rounds=4)
    grid = nodes.grid(experiment)
    liar = edited(nodes.node(client_app(experiment), 21, "1"), "query.hello", clients={"1": 10**7})

    def push(message: Message) -> None:
        if _trains(message) and message.metadata.dst_node_id == 12:
            if message.metadata.group_id == "0":
                grid.nodes.pop(11, None)
            if message.metadata.group_id == "1":
                grid.nodes[21] = edited(liar, "train", images=10**7)

    grid.on_push = push
    nodes.serve(experiment, grid)
    assert [line["1"] for line in _dropped(nodes)][2:] == ["claims 10000000 images, but declared 16 when it joined"] * 2


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
    experiment = tiny("fedavg", "simclr", **{"guard.min_uploads": 1})
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


@pytest.mark.parametrize("name", CASES)
def test_nothing_of_the_images_is_sent(name: str, nodes: Nodes) -> None:
    """Neither pixels as they are or as floats, nor the names of files and folders; and with other labels, the same
    arrays are sent."""
    experiment, file = tiny(*CASES[name]), nodes.root / "data/tiny.npz"
    with np.load(file) as found:
        data = dict(found)
    sent = []
    for folder, labels in (("flower", data["y_train"]), ("again", 2 - data["y_train"])):
        np.savez(file, **{**data, "y_train": labels})
        grid = nodes.grid(experiment)
        nodes.serve(experiment, grid, folder, data_dir=str(nodes.root / "data"))
        sent.append({chunk for chunk in grid.wire.values() if b"NUMPY" in chunk})
    assert sent[0] == sent[1]
    everything = list(grid.wire.values())
    assert sum(map(len, everything)) > 10_000
    for image in data["x_train"]:
        rows = image.transpose(2, 0, 1)[0, 0]
        for canary in (image.tobytes()[:24], rows.tobytes(), (rows / np.float32(255)).astype("<f4").tobytes()):
            assert not [chunk for chunk in everything if canary in chunk]
    for word in (b"tiny.npz", str(nodes.root).encode(), b"x_train", b"y_train", b"labels"):
        assert not [chunk for chunk in everything if word in chunk]


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


def test_a_run_without_its_roll_is_not_gone_on_with(nodes: Nodes) -> None:
    """Its clients would be taken for new ones, and what they remember be lost without a word."""
    short, longer = (tiny("fedema", "byol", rounds=rounds) for rounds in (1, 2))
    nodes.serve(short, nodes.grid(short))
    (nodes.root / "flower/flower.json").unlink()
    (nodes.root / "flower/integrity.jsonl").unlink()
    fedssl.run(short, nodes.root / "local", "cpu", nodes.root / "data", quiet=True)
    for folder in ("flower", "local"):
        grid = nodes.grid(longer)
        with pytest.raises(RunError, match=r"has checkpoints but no flower\.json"):
            nodes.serve(longer, grid, folder)
        assert not grid.sent
        assert len(_dropped(nodes, folder)) == 1


def test_a_run_on_flower_is_not_gone_on_with_elsewhere(nodes: Nodes) -> None:
    short, longer = (tiny("fedema", "byol", rounds=rounds) for rounds in (1, 2))
    nodes.serve(short, nodes.grid(short))
    with pytest.raises(ConfigError, match="holds a run on Flower"):
        fedssl.run(longer, nodes.root / "flower", "cpu", nodes.root / "data", quiet=True)
    assert len(_dropped(nodes)) == 1


def test_a_damaged_roll_is_said_to_be_so(nodes: Nodes) -> None:
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
        with pytest.raises(RunError, match=r"flower\.json is damaged"):
            nodes.serve(experiment, nodes.grid(experiment))


def test_a_start_that_failed_does_not_decide_who_takes_part(nodes: Nodes) -> None:
    """It ended before the first checkpoint, with a list of clients and another seed."""
    experiment = tiny("fedavg", "simclr", rounds=1)
    folder = nodes.root / "flower"
    folder.mkdir()
    (folder / "experiment.toml").write_text(experiment.with_changes({"seed": 7}).to_toml())
    (folder / "flower.json").write_text('{"run": "r", "starts": [0], "clients": ["x"], "image": [1, 2, 2], "kept": {}}')
    nodes.serve(experiment, nodes.grid(experiment))
    assert len(_dropped(nodes)) == 1


def test_clients_get_models_of_their_own_when_the_server_or_they_were_away(nodes: Nodes) -> None:
    """The server is killed before it has asked anybody; then client 1 is away; then nobody is, and nobody but client 1
    is asked; then all have theirs; a longer run makes them anew."""
    experiment = tiny("featarc", "simclr", rounds=1)
    grid = nodes.grid(experiment)
    speak = grid.nodes[11]

    def have() -> list[str]:
        return sorted(path.parts[-3] for path in (nodes.root / "memory").glob("*/*/backbone.safetensors"))

    def asked() -> list[int]:
        found = [m.metadata.dst_node_id for m in grid.sent if m.metadata.message_type == words.KEEP]
        grid.sent.clear()
        return found

    def killed(message: Message) -> None:
        if message.metadata.message_type == words.KEEP:
            raise Killed

    grid.on_push = killed
    with pytest.raises(Killed):
        nodes.serve(experiment, grid)
    assert have() == []
    grid.on_push = lambda message: None
    del grid.nodes[11]
    said = nodes.serve(experiment, grid)
    assert "client 1 its node is not connected" in said
    assert (asked(), have()) == ([10, 12], ["0", "2"])
    grid.nodes[11] = speak
    nodes.serve(experiment, grid)
    assert (asked(), have()) == ([11], ["0", "1", "2"])
    nodes.serve(experiment, FakeGrid({}))
    longer = experiment.with_changes({"rounds": 2})
    grid = nodes.grid(longer)
    nodes.serve(longer, grid)
    assert asked() == [10, 11, 12]


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


def test_a_site_that_has_lost_its_images_is_rejected_when_a_run_resumes(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr", rounds=1)
    nodes.serve(experiment, nodes.grid(experiment))
    longer = experiment.with_changes({"rounds": 2})
    grid = nodes.grid(longer)
    grid.nodes[11] = edited(grid.nodes[11], "query.hello", clients={"1": 0})
    said = nodes.serve(longer, grid, round_timeout=0.5)
    assert any('"1" had images when the run began, and has none now' in line for line in said)
    assert _dropped(nodes)[-1] == {"0": None, "1": "its node is not connected", "2": None}


def test_peers_are_relayed_and_it_is_said(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr", **{"topology.name": "cycle"})
    local = fedssl.run(experiment, nodes.root / "local", "cpu", nodes.root / "data", quiet=True)
    said = nodes.serve(experiment, nodes.grid(experiment))
    assert any("relayed by the server" in line for line in said)
    assert _bits(nodes) == _bits(nodes, local.dir.name)
