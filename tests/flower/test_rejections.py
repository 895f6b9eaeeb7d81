"""Rejections name the site and reach its operator; a site's name belongs to one key."""

from __future__ import annotations

import json

import pytest
from error_messages import raises
from fake_grid import FakeGrid, Nodes, edited, is_task, tiny, trains
from flwr.app import Message

from fedssl.core.errors import RunError
from fedssl.core.state.state import State
from fedssl.experiment.experiment import Experiment
from fedssl.flower import client_app, messages
from fedssl.flower.codec import decode, encode
from fedssl.runs.rounds_log import read_rounds

pytestmark = pytest.mark.rows("C11")

NAMELESS = (
    "its key was registered without a name, and other keys have one: register it again with --name"
)


def _notices(grid: FakeGrid, node: int) -> list[str]:
    """Return the notices that the server has sent to a node."""
    texts = []
    for message in grid.sent:
        metadata = message.metadata
        if metadata.message_type == messages.NOTICE and metadata.dst_node_id == node:
            texts.append(messages.unpack_notice(message.content))
    return texts


# -- a rejected hello --


def test_a_rejected_hello_names_the_site_and_is_delivered(
    nodes: Nodes, capsys: pytest.CaptureFixture[str]
) -> None:
    """Node 12 has another architecture. The log has the name of its key, its own log the reason."""
    experiment = tiny("fedavg", "simclr")
    grid = nodes.grid(experiment)
    grid.names |= {10: "0", 11: "1", 12: "2"}
    grid.nodes[12] = nodes.node(client_app(experiment.with_changes({"method.hidden": 24})), 12, "2")
    with raises(RunError):
        nodes.serve(experiment, grid)
    [notice] = _notices(grid, 12)
    assert notice.startswith("this node was rejected: its model differs: projector")
    assert f"notice from the server: {notice}\n" in capsys.readouterr().err
    assert not _notices(grid, 10)


def test_a_hello_that_fails_at_the_node_names_the_site(nodes: Nodes) -> None:
    """Its operator has seen the reason where it arose, and gets no notice."""
    experiment = tiny("fedavg", "simclr")
    grid = nodes.grid(experiment)
    grid.nodes[12] = nodes.node(
        client_app(experiment), 12, "2", **{"data-dir": str(nodes.root / "nowhere")}
    )
    reason = (
        'rejected node 12, which claims to be "2": its images cannot be read; see the node\'s log'
    )
    with pytest.raises(RunError, match=reason):
        nodes.serve(experiment, grid)
    assert not _notices(grid, 12)


def test_an_invalid_hello_names_the_site(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr", rounds=1)
    grid = nodes.grid(experiment)
    grid.nodes[10] = edited(grid.nodes[10], messages.HELLO, image=[0, 0, 0])
    lines = nodes.serve(experiment, grid, clients=2)
    reason = "its hello is not valid: image.0: input should be greater than or equal to 1, got 0"
    assert f'rejected node 10, which claims to be "0": {reason}' in lines
    assert _notices(grid, 10) == [f"this node was rejected: {reason}"]


# -- a rejected upload --


def _spoiled(grid: FakeGrid, node: int, factor: float) -> None:
    """Multiply the models that a node uploads."""
    honest = grid.nodes[node]

    def spoil(message: Message) -> Message | None:
        answer = honest(message)
        if trains(message) and answer is not None:
            upload = decode(answer.content)
            for key, value in upload.items():
                if isinstance(value, State):
                    upload[key] = State(value.layout, value.floats * factor, value.counts)
            for name, record in encode(upload).items():
                answer.content[name] = record
        return answer

    grid.nodes[node] = spoil


@pytest.mark.parametrize(
    ("factor", "reason"),
    [(float("nan"), "model: contains NaN or infinite values"), (1e6, "the norm of its update is ")],
)
def test_a_dropped_upload_is_delivered_with_its_reason(
    factor: float, reason: str, nodes: Nodes
) -> None:
    """For faults found by the runtime or by comparing uploads; also in the last round."""
    experiment = tiny("fedavg", "simclr", rounds=2)
    grid = nodes.grid(experiment)
    _spoiled(grid, 11, factor)
    nodes.serve(experiment, grid)
    dropped = [
        line["clients"][1]["dropped"] for line in read_rounds(nodes.root / "flower/rounds.jsonl")
    ]
    assert [text.startswith(reason) for text in dropped] == [True, True]
    assert _notices(grid, 11) == [
        f'round {round}: the upload of "1" was dropped: {text}'
        for round, text in enumerate(dropped, 1)
    ]
    assert not grid.waiting
    assert not _notices(grid, 10) + _notices(grid, 12)


def test_a_client_that_reports_a_failure_itself_gets_no_notice(nodes: Nodes) -> None:
    experiment = tiny("fedavg", "simclr", rounds=1)
    grid = nodes.grid(experiment)
    grid.nodes[11] = edited(grid.nodes[11], "train", error="no electricity")
    nodes.serve(experiment, grid)
    assert not _notices(grid, 11)


# -- names and keys --


def _named(nodes: Nodes, experiment: Experiment) -> FakeGrid:
    """Three sites whose keys are registered with names."""
    grid = nodes.grid(experiment)
    grid.names |= {10: "0", 11: "1", 12: "2"}
    grid.keys |= {node: b"key %d" % node for node in grid.nodes}
    return grid


def test_a_key_without_a_name_cannot_take_the_name_of_an_absent_site(nodes: Nodes) -> None:
    """Site 2 has a registered name and is away: Flower does not list it, nor its name."""
    experiment = tiny("fedavg", "simclr")
    grid = _named(nodes, experiment)
    del grid.nodes[12]
    grid.nodes[13] = nodes.node(client_app(experiment), 13, "2")
    grid.keys[13] = b"key 13"
    with pytest.raises(
        RunError, match=f'only 2 of 3 .*; rejected node 13, which claims to be "2": {NAMELESS}'
    ):
        nodes.serve(experiment, grid)
    assert _notices(grid, 13) == [f"this node was rejected: {NAMELESS}"]
    assert not grid.receivers("train")


def test_a_key_without_a_name_is_removed_when_named_ones_come(nodes: Nodes) -> None:
    """It is the only one at first, and accepted."""
    experiment = tiny("fedavg", "simclr", rounds=1)
    grid = _named(nodes, experiment)
    late = {node: grid.nodes.pop(node) for node in (10, 11, 12)}
    lookups = 0
    grid.nodes[9] = nodes.node(client_app(experiment), 9, "2")
    grid.keys[9] = b"key 9"
    listed = grid.get_nodes

    def get_nodes() -> object:
        nonlocal lookups
        lookups += 1
        if lookups == 4:
            grid.nodes |= late
        return listed()

    grid.get_nodes = get_nodes  # type: ignore[method-assign, assignment]
    lines = nodes.serve(experiment, grid, join_timeout=10)
    assert "1 of 3 clients are connected; waiting up to 10 s" in lines
    assert f'rejected node 9, which claims to be "2": {NAMELESS}' in lines
    assert set(grid.receivers("train")) == {10, 11, 12}


def test_a_run_with_registered_names_resumes_with_them_only(nodes: Nodes) -> None:
    """After a restart the first node to connect has no name and claims that of an absent site."""
    experiment = tiny("fedavg", "simclr", rounds=1)
    nodes.serve(experiment, _named(nodes, experiment))
    assert json.loads((nodes.root / "flower/flower.json").read_text())["registered"] is True
    longer = experiment.with_changes({"rounds": 2})
    grid = FakeGrid({13: nodes.node(client_app(longer), 13, "2")})
    with pytest.raises(RunError, match=f"only 0 of 3 .*{NAMELESS}"):
        nodes.serve(longer, grid)


@pytest.mark.parametrize("same", [True, False])
def test_without_registered_names_a_name_stays_with_its_key(same: bool, nodes: Nodes) -> None:
    """Node 11 is away in round 2; then another node has its client-id, with its key or another."""
    experiment = tiny("fedavg", "simclr", rounds=4)
    grid = nodes.grid(experiment)
    grid.keys |= {10: b"a", 11: b"b", 12: b"c", 21: b"b" if same else b"d"}

    def push(message: Message) -> None:
        if is_task(message, node=12, round=0):
            grid.nodes.pop(11, None)
        if is_task(message, node=12, round=1):
            grid.nodes[21] = nodes.node(client_app(experiment), 21, "1")

    grid.on_push = push
    lines = nodes.serve(experiment, grid)
    assert (21 in grid.receivers("train")) == same
    taken = 'rejected node 21, which claims to be "1": client-id "1" belongs to another key'
    assert any(line.startswith(taken) for line in lines) != same
