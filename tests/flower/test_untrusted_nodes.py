"""No message of one node ends the run of the others."""

from __future__ import annotations

import json
from typing import Any

import pytest
from error_messages import raises
from fake_grid import CASES, FakeGrid, Nodes, edited, tiny, trains
from flwr.app import Error, Message

from fedssl.core.errors import RunError
from fedssl.core.state.tree import tensor
from fedssl.core.version import __version__
from fedssl.flower.codec import decode, encode
from fedssl.flower.messages import Refusal, pack_hello, unpack_hello
from fedssl.flower.node import Node

HUGE = 10**400


def _clients(nodes: Nodes) -> list[str]:
    return list(json.loads((nodes.root / "flower/flower.json").read_text())["clients"])


@pytest.mark.parametrize(
    "case", [("fedca", "simclr", "dictionary = 12\nbeta = 0.0"), CASES["ccl"]], ids=lambda c: c[0]
)
def test_only_bad_rows_of_features_are_dropped(case: tuple[str, ...], nodes: Nodes) -> None:
    """Also if every client must send a valid upload."""
    experiment = tiny(*case, rounds=2)
    grid = nodes.grid(experiment)
    honest = grid.nodes[11]

    def spoiled(message: Message) -> Message | None:
        answer = honest(message)
        if trains(message) and answer is not None:
            upload = decode(answer.content)
            tensor(upload, "features")[0] = float("nan")
            for name, record in encode(upload).items():
                answer.content[name] = record
        return answer

    grid.nodes[11] = spoiled
    nodes.serve(experiment, grid, quorum=1.0)
    lines = nodes.strict_rounds()
    assert len(lines) == 2
    for line in lines:
        assert [client["dropped"] for client in line["clients"]] == [None] * 3
        reasons = [client.get("rows_left_out") for client in line["clients"]]
        assert (reasons[0], reasons[2]) == (None, None)
        assert reasons[1].startswith("features: 1 of ")
        assert reasons[1].endswith(" rows left out, 1 not finite")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"metrics": {"seconds": 0}}, "metrics.seconds: input should be greater than or equal to"),
        ({"metrics": {"seconds": 1e-300}}, "greater than or equal to 0.000001, got 1e-300"),
        (
            {"metrics": {"loss": HUGE}},
            "metrics.loss: input should be a valid number, got 1000000000000000000000000",
        ),
        ({"metrics": {"loss": float("nan")}}, "loss: input should be a finite number, got nan"),
        ({"metrics": {"loss": 1e300}}, "metrics.loss: input should be less than or equal to 1000"),
        ({"metrics": {"loss": "none"}}, "loss: input should be a valid number, got 'none'"),
        ({"metrics": {"loss": None}}, "loss: input should be a valid number, got None"),
        ({"metrics": {"loss": True}}, "loss: input should be a valid number, got True"),
        (
            {"metrics": {"images": HUGE}},
            "metrics.images: input should be less than or equal to 1000000000000000, got 1000000",
        ),
        ({"metrics": {"images": -16}}, "input should be greater than or equal to 0, got -16"),
        ({"metrics": {"steps": 1.5}}, "metrics.steps: input should be a valid integer, got 1.5"),
        ({"metrics": {"speed": 1.0}}, "metrics.speed: "),
        ({"metrics": [1]}, "metrics.1: "),
        ({"round": True}, "round: input should be a valid integer, got True"),
        ({"attempt": 7}, "answers attempt 7 instead of 0"),
        ({"images": HUGE}, "claims 10000"),
        ({"images": "y" * 2_000_000}, "claims 'yyyy"),
        ({"error": ["x"]}, "['x']"),
        ({"error": "\x1b[2J\nflower: round 9/9"}, r"\x1b[2J\nflower: round 9/9"),
        ({"notes": {"lam": HUGE}}, None),
        ({"notes": {"lam\n": 2.0, "is": True, "nan": float("nan"), "text": "x"}}, None),
        ({"notes": [1]}, "notes: input should be a valid dictionary, got [1]"),
        ({"notes": {"x" * 2**22: 1}}, "characters is longer than 4194304"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_no_reply_of_one_node_ends_the_run(
    changes: dict[str, Any], reason: str | None, nodes: Nodes
) -> None:
    experiment = tiny("fedavg", "simclr", rounds=2)
    grid = nodes.grid(experiment)
    grid.nodes[11] = edited(grid.nodes[11], "train", **changes)
    nodes.serve(experiment, grid)
    for line in nodes.strict_rounds():
        dropped = [client["dropped"] for client in line["clients"]]
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
        (
            {"image": [10**9, 12, 12]},
            "its hello is not valid: image.0: input should be less than or equal to 1024, got 1000",
        ),
        ({"image": [0, 0, 0]}, "image.0: input should be greater than or equal to 1, got 0"),
        ({"image": [3, 12]}, "its hello is not valid"),
        ({"image": [3, 24, 24]}, "left out 0: its images have shape (3, 24, 24), unlike most"),
        ({"image": [7, 12, 12]}, "its model differs: backbone"),
        ({"layout": []}, "its model differs: backbone"),
        ({"layout": [[["x"], [2], "weight"]]}, "layout.0.0: input should be a valid string"),
        ({"layout": [["x", 2, "weight"]]}, "layout.0.1: input should be a valid tuple, got 2"),
        ({"layout": [["x", [2], "bias"]]}, "layout.0.2: input should be 'weight', 'norm'"),
        ({"layout": [["\x1b[2J" * 999, [2], "weight"]]}, "its model differs: backbone"),
        ({"clients": {"..": 16}}, "not a valid client name, got '..'"),
        ({"clients": {"a\nrefused": 16}}, r"not a valid client name, got 'a\nrefused'"),
        ({"clients": {"x" * 10**6: 16}}, "more than 200 characters when percent-encoded, got 'xxx"),
        (
            {"clients": {"\N{GREEK SMALL LETTER ALPHA}" * 40: 16}},
            "more than 200 characters when percent-encoded",
        ),
        ({"clients": [7]}, "clients: input should be a valid "),
        (
            {"clients": {"0": HUGE}},
            "clients.0: input should be less than or equal to 10000000, got",
        ),
        ({"clients": {"0": 10**7 + 1}}, "less than or equal to 10000000, got 10000001"),
        ({"version": "v" * 10**6}, "it has fedssl vvvv"),
        ({"error": "\x1b[2J" * 10**5}, r'rejected node 10, which claims to be "0": \x1b[2J'),
    ],
    ids=lambda value: str(value)[:40],
)
def test_no_hello_of_one_node_keeps_the_others_from_beginning(
    changes: dict[str, Any], reason: str, nodes: Nodes
) -> None:
    """The hello that is processed first."""
    experiment = tiny("fedavg", "simclr", rounds=1)
    grid = nodes.grid(experiment)
    grid.nodes[10] = edited(grid.nodes[10], "query.hello", **changes)
    lines = nodes.serve(experiment, grid, clients=2)
    assert _clients(nodes) == ["1", "2"]
    [rejection] = [line for line in lines if reason in line]
    assert len(rejection) < 450
    assert rejection.isprintable()


def test_a_hello_without_clients_is_refused(nodes: Nodes) -> None:
    hello = Node(tiny("fedavg", "simclr"), nodes.config("0")).hello()
    assert unpack_hello(pack_hello(hello)) == hello
    refusal = unpack_hello(pack_hello(hello._replace(clients={})))
    assert isinstance(refusal, Refusal)
    assert refusal.reason.startswith("its hello is not valid: clients: ")


def test_a_hello_of_another_version_is_refused_for_its_version(nodes: Nodes) -> None:
    """Also if its other values are not valid here: their format may have changed."""
    hello = Node(tiny("fedavg", "simclr"), nodes.config("0")).hello()
    other = hello._replace(version="0.0.9", image=())  # type: ignore[arg-type]
    assert unpack_hello(pack_hello(other)) == Refusal(
        f"it has fedssl 0.0.9, the server {__version__}", ("0",)
    )


def test_any_error_of_the_check_rejects_the_node(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedssl.flower import server_run

    build = server_run.build_method

    def scarce(experiment: Any, image: Any, device: Any) -> Any:
        if image == (3, 99, 99):
            raise MemoryError("no room for /srv/secret")
        return build(experiment, image, device)

    monkeypatch.setattr(server_run, "build_method", scarce)
    experiment = tiny("fedavg", "simclr", rounds=1)
    grid = nodes.grid(experiment)
    grid.nodes[10] = edited(grid.nodes[10], "query.hello", image=[3, 99, 99])
    lines = nodes.serve(experiment, grid, clients=2)
    assert any("checking its hello failed (MemoryError)" in line for line in lines)


def test_clients_that_disagree_about_the_shape_of_images_are_named(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr", rounds=1, clients=2)
    grid = nodes.grid(experiment)
    grid.nodes[11] = edited(grid.nodes[11], "query.hello", image=[3, 24, 24])
    with raises(RunError):
        nodes.serve(experiment, grid)


@pytest.mark.parametrize("kind", ["train", "query.hello"])
def test_an_answer_that_flower_cannot_read_costs_no_other_answer(kind: str, nodes: Nodes) -> None:
    """Flower raises when the answer is pulled, and discards all answers pulled with it."""
    experiment = tiny("fedavg", "simclr", rounds=2)

    class Failing(FakeGrid):
        def pull_messages(self, message_ids: Any) -> list[Message]:
            answers = super().pull_messages(message_ids)
            for answer in answers:
                if answer.metadata.message_type == kind and answer.metadata.src_node_id == 10:
                    raise ValueError("/srv/secret")
            return answers

    grid = Failing(nodes.grid(experiment).nodes)
    clients = 2 if kind == "query.hello" else 3
    lines = nodes.serve(experiment, grid, clients=clients)
    reason = "its answer cannot be read (ValueError)"
    if kind == "train":
        for line in nodes.strict_rounds():
            assert [client["dropped"] for client in line["clients"]] == [reason, None, None]
        assert len(nodes.strict_rounds()) == 2
    else:
        assert _clients(nodes) == ["1", "2"]
        assert f"rejected node 10: {reason}" in lines


def test_errors_of_flower_are_shortened_and_sanitized(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr", rounds=1)
    grid = nodes.grid(experiment)
    healthy = grid.nodes[11]

    def fail(message: Message) -> Message | None:
        if trains(message):
            return Message(Error(0, "\x1b[2J" * 10**5), reply_to=message)
        return healthy(message)

    grid.nodes[11] = fail
    nodes.serve(experiment, grid)
    reason = nodes.strict_rounds()[0]["clients"][1]["dropped"]
    assert reason.startswith(r"Flower reports: \x1b[2J")
    assert reason.isprintable()
    assert len(reason) == 201
