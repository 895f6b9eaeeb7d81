"""Runs with secure aggregation through the server's and the clients' apps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
from error_messages import raises
from fake_grid import CASES, Nodes, edited, tiny
from flwr.app import Message
from secure_federation import Recording, failing, sum_in_the_clear

from fedssl.core.errors import RunError
from fedssl.core.state.state import State
from fedssl.core.state.tree import model
from fedssl.engine.checkpoints.store import Store
from fedssl.experiment.experiment import Experiment
from fedssl.flower.messages import ADVERTISE, SHARE, TRAIN_MASKED, UNMASK
from fedssl.flower.secure_aggregation import node as secure_node
from fedssl.flower.secure_aggregation.fixed_point import FLOATS
from fedssl.flower.secure_aggregation.masks import Mask, Words, apply_masks
from fedssl.flower.secure_aggregation.storage import SENT_IN_ANOTHER_RUN
from fedssl.runs.rounds_log import read_rounds

pytestmark = pytest.mark.rows("C8")


def _experiment(rounds: int = 1, clients: int = 5, **changes: object) -> Experiment:
    return tiny("fedavg", "simclr", rounds=rounds, clients=clients, **changes)


def _model(nodes: Nodes, folder: str) -> State:
    snapshot = Store(nodes.root / folder).load(lambda line: None)
    assert snapshot is not None
    return model(snapshot.sites["server"], "model")


def _plain(nodes: Nodes, experiment: Experiment, *broken: int) -> dict[str, bytes]:
    """Return the bits of a run without these nodes whose sums are computed in the clear."""
    grid = nodes.grid(experiment)
    for node in broken:
        grid.nodes[node] = failing(grid.nodes[node], "train")
    nodes.serve(experiment, grid, "clear")
    return nodes.bits("clear")


# -- the result --


def test_two_rounds_give_the_bits_of_sums_in_the_clear(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = _experiment(rounds=2)
    lines = nodes.serve(experiment, nodes.grid(experiment), secure_aggregation=True)
    assert any("secure aggregation is on" in line for line in lines)
    assert nodes.dropped() == [dict.fromkeys("01234")] * 2
    sum_in_the_clear(monkeypatch)
    assert nodes.bits() == _plain(nodes, experiment)


def test_a_round_gives_the_mean_of_a_plain_run_up_to_the_fixed_point_step(nodes: Nodes) -> None:
    """Five clients round to half a step of 2⁻⁴⁰ each, and the shares sum to 1. Both runs then round
    to float32: half a unit in the last place each, 2⁻²³ relative in total."""
    experiment = _experiment()
    nodes.serve(experiment, nodes.grid(experiment), "plain")
    nodes.serve(experiment, nodes.grid(experiment), secure_aggregation=True)
    plain = _model(nodes, "plain")
    secure = _model(nodes, "flower")
    tolerance = 5 / 2 * FLOATS.step + plain.floats.abs().double() * 2**-23
    assert bool(((secure.floats.double() - plain.floats.double()).abs() <= tolerance).all())
    assert secure.counts.tolist() == plain.counts.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fedu", ""),
        ("fedema", ""),
        ("fedbn", 'eval_norm = "mean"'),
        ("fedavgm", 'weights = "uniform"'),
        ("fedadam", ""),
        ("fedprox", ""),
        ("perssfl", ""),
    ],
)
def test_every_algorithm_that_reads_means_only(
    name: str, settings: str, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = "byol" if name in ("fedu", "fedema") else "simclr"
    experiment = tiny(name, method, settings, rounds=2, clients=3)
    nodes.serve(experiment, nodes.grid(experiment), secure_aggregation=True)
    assert nodes.dropped() == [dict.fromkeys("012")] * 2
    nodes.root.joinpath("memory").rename(nodes.root / "memory-of-secure")
    if settings == 'weights = "uniform"':
        return  # the clear sums of this test have weights by images
    sum_in_the_clear(monkeypatch)
    assert nodes.bits() == _plain(nodes, experiment)


# -- dropouts --


@pytest.mark.parametrize("phase", [pytest.param(SHARE, marks=pytest.mark.slow), TRAIN_MASKED])
def test_one_dropout_of_five_before_its_upload(
    phase: str, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum of the other four is exact, whether or not client 2 has sent its shares."""
    experiment = _experiment()
    grid = nodes.grid(experiment)
    grid.nodes[12] = failing(grid.nodes[12], phase)
    nodes.serve(experiment, grid, secure_aggregation=True)
    [dropped] = nodes.dropped()
    assert dropped == {**dict.fromkeys("01234"), "2": "Flower reports: the process has failed"}
    [line] = read_rounds(nodes.root / "flower/rounds.jsonl")
    assert line["clients"][0]["notes"] == {"clients_in_sum": 4.0}
    if phase == TRAIN_MASKED:  # otherwise the shares of the weight are those of four clients
        sum_in_the_clear(monkeypatch)
        assert nodes.bits() == _plain(nodes, experiment, 12)


def test_one_dropout_of_five_after_its_upload(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its upload is in the sum, which the other four unmask."""
    experiment = _experiment()
    grid = nodes.grid(experiment)
    grid.nodes[12] = failing(grid.nodes[12], UNMASK)
    nodes.serve(experiment, grid, secure_aggregation=True)
    assert nodes.dropped() == [dict.fromkeys("01234")]
    sum_in_the_clear(monkeypatch)
    assert nodes.bits() == _plain(nodes, experiment)


@pytest.mark.parametrize(
    "phase",
    [pytest.param(SHARE, marks=pytest.mark.slow), TRAIN_MASKED, UNMASK],
)
def test_with_fewer_than_the_threshold_the_round_fails(phase: str, nodes: Nodes) -> None:
    """Of five clients four are needed, and three answer in round 1: the model stays as it was, also
    if the clients have trained. Round 2 succeeds."""
    experiment = _experiment(rounds=2)
    grid = nodes.grid(experiment)
    for node in (13, 14):
        grid.nodes[node] = failing(grid.nodes[node], phase, round=0)
    nodes.serve(experiment, grid, secure_aggregation=True)
    first, second = read_rounds(nodes.root / "flower/rounds.jsonl")
    assert [first["failed"], second["failed"]] == [True, False]
    assert all(client["dropped"] for client in first["clients"])
    trained = [client["memory_advanced"] for client in first["clients"]]
    assert trained == [phase != SHARE] * 3 + [phase == UNMASK] * 2


@pytest.mark.slow
def test_clients_that_advertise_no_keys_are_as_if_not_selected(nodes: Nodes) -> None:
    """Three of five are left, all of which are needed to unmask their sum."""
    experiment = _experiment()
    grid = nodes.grid(experiment)
    for node in (13, 14):
        grid.nodes[node] = failing(grid.nodes[node], ADVERTISE)
    nodes.serve(experiment, grid, secure_aggregation=True)
    [dropped] = nodes.dropped()
    assert [client for client, reason in dropped.items() if reason is None] == ["0", "1", "2"]


@pytest.mark.slow
def test_a_failed_round_keeps_the_model(nodes: Nodes) -> None:
    experiment = _experiment()
    before = _experiment(rounds=3)
    grid = nodes.grid(experiment)
    for node in (13, 14):
        grid.nodes[node] = failing(grid.nodes[node], TRAIN_MASKED)
    with raises(RunError):
        nodes.serve(before, grid, secure_aggregation=True)
    snapshots = [Store(nodes.root / "flower").load(lambda line: None)]
    assert snapshots[0] is not None
    assert snapshots[0].rounds == 3
    assert not model(snapshots[0].sites["server"], "model").counts.any()  # it saw no batch


@pytest.mark.slow
def test_a_node_that_never_answers_delays_a_phase_until_its_deadline(nodes: Nodes) -> None:
    experiment = _experiment()
    grid = nodes.grid(experiment)
    answer = grid.nodes[14]

    def silent(message: Message) -> Message | None:
        if message.metadata.message_type == ADVERTISE:
            return None
        return answer(message)

    grid.nodes[14] = silent
    nodes.serve(experiment, grid, secure_aggregation=True, round_timeout=6)
    assert nodes.dropped() == [{**dict.fromkeys("0123"), "4": "has not answered in time"}]


# -- what the server receives --


def test_the_server_receives_no_single_upload(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every object of every answer is searched for the vectors without masks, for the models as
    float32, and for the masks. The vectors that it receives are uniform."""
    experiment = _experiment()
    grid = nodes.grid(experiment)
    recording = Recording(grid, monkeypatch)
    nodes.serve(experiment, grid, secure_aggregation=True)
    assert len(recording.clear) == 5
    words = len(recording.clear[0])
    masked = recording.masked(words)
    assert len(masked) == 5
    for clear, upload in zip(recording.clear, recording.uploads, strict=True):
        floats = model(upload, "model").floats.numpy()
        for start in range(1, words - 4, 997):
            assert not recording.contains(clear[start : start + 4].tobytes())
        for start in range(0, len(floats) - 8, 997):
            assert not recording.contains(floats[start : start + 8].tobytes())
        for vector in masked:
            mask = vector - clear
            assert not recording.contains(mask[:4].tobytes())
            # χ² of 256 byte values: 255 ± √510 for random bytes.
            for uniform in (vector, mask):
                counts = np.bincount(uniform.view(np.uint8), minlength=256)
                expected = 8 * words / 256
                assert ((counts - expected) ** 2 / expected).sum() < 255 + 6 * 510**0.5
    # The same test detects an upload without masks.
    counts = np.bincount(recording.clear[0].view(np.uint8), minlength=256)
    assert ((counts - 8 * words / 256) ** 2 / (8 * words / 256)).sum() > 10_000


def test_the_sum_of_what_it_receives_is_the_sum_of_the_uploads(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit: the model is decoded from the sum of the vectors without masks."""
    experiment = _experiment()
    grid = nodes.grid(experiment)
    recording = Recording(grid, monkeypatch)
    nodes.serve(experiment, grid, secure_aggregation=True)
    total = sum(recording.clear[1:], recording.clear[0])
    floats = _model(nodes, "flower").floats.numpy()
    expected = FLOATS.decode(total[1 : 1 + len(floats)], 1.0).astype(np.float32)
    assert floats.tobytes() == expected.tobytes()
    masked = recording.masked(len(total))
    assert sum(masked[1:], masked[0]).tobytes() != total.tobytes()  # the self masks are in it


def test_metrics_and_notes_of_single_clients_are_not_sent(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedEMA's clients note their drift. The log has the mean loss under every client."""
    experiment = tiny(*CASES["fedema"], rounds=1, clients=3)
    grid = nodes.grid(experiment)
    recording = Recording(grid, monkeypatch)
    nodes.serve(experiment, grid, secure_aggregation=True)
    for word in (b"drift", b"loss", b"embedding", b"rank", b"notes"):
        assert not recording.contains(word)
    [line] = read_rounds(nodes.root / "flower/rounds.jsonl")
    [loss] = {client["loss"] for client in line["clients"]}
    shares = np.array([16, 16, 16]) / 48
    expected = sum(
        share * metrics.loss for share, metrics in zip(shares, recording.metrics, strict=True)
    )
    assert loss == pytest.approx(expected, rel=1e-9)
    assert [client["steps"] for client in line["clients"]] == [2, 2, 2]
    assert {client["bytes_up"] for client in line["clients"]} == {8 * len(recording.clear[0])}


# -- the setting --


def test_the_run_directory_records_it(nodes: Nodes) -> None:
    experiment = _experiment(clients=3)
    settings = {"secure_aggregation": True, "secure_threshold": 0.5}
    nodes.serve(experiment, nodes.grid(experiment), data_dir=str(nodes.root / "data"), **settings)
    record = json.loads((nodes.root / "flower/flower.json").read_text())
    assert record["secure_aggregation"] is True
    results = json.loads((nodes.root / "flower/results.json").read_text())
    assert results["secure_aggregation"] is True
    results_of_plain = nodes.root / "plain/results.json"
    nodes.serve(experiment, nodes.grid(experiment), "plain")
    assert "secure_aggregation" not in json.loads(results_of_plain.read_text())


@pytest.mark.parametrize("first", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_run_cannot_switch(first: bool, nodes: Nodes) -> None:
    experiment = _experiment(clients=3)
    nodes.serve(experiment, nodes.grid(experiment), secure_aggregation=first)
    longer = experiment.with_changes({"rounds": 2})
    before = nodes.bits()
    with raises(RunError):
        nodes.serve(longer, nodes.grid(longer), secure_aggregation=not first)
    assert nodes.bits() == before
    nodes.serve(longer, nodes.grid(longer), secure_aggregation=first)
    assert len(nodes.dropped()) == 2


class Killed(BaseException):
    """Stands for the end of the server's process."""


@pytest.mark.parametrize(
    "phase",
    [
        pytest.param(ADVERTISE, marks=pytest.mark.slow),
        pytest.param(SHARE, marks=pytest.mark.slow),
        pytest.param(TRAIN_MASKED, marks=pytest.mark.slow),
        UNMASK,
    ],
)
def test_a_killed_server_resumes_with_the_same_bits(phase: str, nodes: Nodes) -> None:
    """Killed in round 2, in each phase. The repeated round has new keys and the same model."""
    experiment = _experiment(rounds=2, clients=3)
    nodes.serve(experiment, nodes.grid(experiment), "whole", secure_aggregation=True)
    nodes.root.joinpath("memory").rename(nodes.root / "memory-of-whole")
    grid = nodes.grid(experiment)

    def kill(message: Message) -> None:
        metadata = message.metadata
        # The messages before this one were sent, and are answered after the restart.
        if (metadata.message_type, metadata.group_id, metadata.dst_node_id) == (phase, "1", 12):
            raise Killed

    grid.on_push = kill
    with pytest.raises(Killed):
        nodes.serve(experiment, grid, secure_aggregation=True)
    grid.on_push = lambda message: None
    nodes.serve(experiment, grid, secure_aggregation=True)
    assert nodes.dropped() == [dict.fromkeys("012")] * 2
    assert nodes.bits() == nodes.bits("whole")


def test_uploads_of_a_run_are_not_sent_in_a_second_one(nodes: Nodes) -> None:
    """With the same seed, the uploads of the first round are the same. Client 2 drops out of the
    second run: the difference of the two sums would be its upload."""
    experiment = _experiment(clients=4)
    nodes.serve(experiment, nodes.grid(experiment), "first", secure_aggregation=True)
    grid = nodes.grid(experiment)
    grid.nodes[12] = failing(grid.nodes[12], TRAIN_MASKED)
    settings = {"secure_aggregation": True, "secure_threshold": 0.5}
    with raises(RunError):
        nodes.serve(experiment, grid, **settings)
    dropped = set(nodes.dropped()[0].values())
    assert SENT_IN_ANOTHER_RUN in dropped
    other = experiment.with_changes({"seed": 8})
    nodes.serve(other, nodes.grid(other), "other", **settings)
    assert nodes.dropped("other") == [dict.fromkeys("0123")]


def _kill_before(phase: str, message: Message) -> None:
    """Kill the server before it sends the last client's message of a phase."""
    if (message.metadata.message_type, message.metadata.dst_node_id) == (phase, 12):
        raise Killed


def test_no_mask_is_used_for_two_uploads(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is killed twice in one round. Two uploads with the same masks would reveal their
    difference: a pair's mask is used by its two clients, once each, and a self mask once."""
    used: list[tuple[bytes, bool]] = []

    def recorded(words: Words, masks: Sequence[Mask]) -> None:
        used.extend((mask.key, mask.subtract) for mask in masks)
        apply_masks(words, masks)

    monkeypatch.setattr(secure_node, "apply_masks", recorded)
    experiment = _experiment(clients=3)
    grid = nodes.grid(experiment)

    for phase in (TRAIN_MASKED, UNMASK):
        grid.on_push = partial(_kill_before, phase)
        with pytest.raises(Killed):
            nodes.serve(experiment, grid, secure_aggregation=True)
    grid.on_push = lambda message: None
    nodes.serve(experiment, grid, secure_aggregation=True)
    # Two clients have sent uploads when the third one's message was not, then all three twice.
    assert len(used) == (2 + 3 + 3) * 3
    assert len(set(used)) == len(used)


def test_a_repeated_round_is_not_unmasked_with_other_clients(nodes: Nodes) -> None:
    """The server is killed after four of five clients were asked to unmask a sum of five. In the
    repeated round client 2 drops out: the difference of the two sums would be its upload. The round
    fails, and the next one succeeds."""
    experiment = _experiment(rounds=2)
    grid = nodes.grid(experiment)

    def kill(message: Message) -> None:
        if (message.metadata.message_type, message.metadata.dst_node_id) == (UNMASK, 14):
            raise Killed

    grid.on_push = kill
    with pytest.raises(Killed):
        nodes.serve(experiment, grid, secure_aggregation=True)
    grid.on_push = lambda message: None
    grid.nodes[12] = failing(grid.nodes[12], TRAIN_MASKED, round=0)
    nodes.serve(experiment, grid, secure_aggregation=True)
    first, second = read_rounds(nodes.root / "flower/rounds.jsonl")
    assert [first["failed"], second["failed"]] == [True, False]


# -- invalid answers --


def test_an_invalid_answer_drops_its_client_with_a_reason(nodes: Nodes) -> None:
    """It claims another number of images than in its hello."""
    experiment = _experiment(clients=5)
    grid = nodes.grid(experiment)
    result = json.dumps([999, 8, 1, 0.1])
    grid.nodes[11] = edited(grid.nodes[11], TRAIN_MASKED, result=result)
    nodes.serve(experiment, grid, secure_aggregation=True)
    [dropped] = nodes.dropped()
    assert dropped == {
        **dict.fromkeys("01234"),
        "1": "claims 999 images, but declared 10",
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phase", "result"),
    [
        (ADVERTISE, json.dumps(["00", "11" * 32])),
        (ADVERTISE, "[" * 1000),
        (SHARE, json.dumps([{"1": "00"}])),
        (SHARE, json.dumps([{"x": 1}])),
        (TRAIN_MASKED, json.dumps([-1, 0, 0, 0])),
        (UNMASK, json.dumps([{}, {"1": "zz"}])),
        (UNMASK, json.dumps([{}, {}])),
    ],
)
def test_malformed_answers_do_not_end_the_run(phase: str, result: str, nodes: Nodes) -> None:
    experiment = _experiment(clients=5)
    grid = nodes.grid(experiment)
    grid.nodes[11] = edited(grid.nodes[11], phase, result=result)
    nodes.serve(experiment, grid, secure_aggregation=True)
    [dropped] = nodes.dropped()
    assert [client for client, reason in dropped.items() if reason] == ["1"] * (phase != UNMASK)
