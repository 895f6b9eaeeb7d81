"""C5: whole runs with [privacy]: ε in every round, never too low after a kill, no side channels."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from error_messages import raises
from factories import (
    bright_dataset,
    bright_pixels,
    interrupted_in_round,
    make_experiment,
    random_pixels,
)

import fedssl
from fedssl.core.errors import ConfigError, RunError
from fedssl.data import Dataset, from_python
from fedssl.engine.checkpoints.store import Store
from fedssl.engine.privacy.accountant import gaussian_epsilon
from fedssl.engine.privacy.clipped_sum import ClippedSum
from fedssl.engine.privacy.ledger import read_charges
from fedssl.nets import read_weights
from fedssl.runs import live_status
from fedssl.runs.live_file import LiveClient
from fedssl.runs.private_run import UNCOVERED
from fedssl.runs.resume_checks import undamaged
from fedssl.runs.rounds_log import read_rounds
from fedssl.runs.session import Interrupted
from fedssl.runs.summary import summarise

pytestmark = pytest.mark.rows("C5")

DATA = bright_dataset()


class Killed(BaseException):
    """Simulates the end of the process."""


def train(
    folder: Path, privacy: dict[str, Any], dataset: Dataset = DATA, **settings: Any
) -> fedssl.Run:
    """Train a small run with group normalisation."""
    method = {"norm": "group", **settings.pop("method", {})}
    experiment = make_experiment(method=method, privacy={"clip": 1.0, **privacy}, **settings)
    experiment.check()
    return fedssl.run(experiment, folder, "cpu", dataset=dataset, quiet=True)


def weights(run: fedssl.Run) -> bytes:
    _, tensors = read_weights(run.dir / "backbone.safetensors")
    return b"".join(tensor.numpy().tobytes() for tensor in tensors.values())


def test_epsilon_is_in_every_round_the_results_and_the_exported_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """σ = 4: after k rounds, ε is that of one release with σ/√k."""
    experiment = make_experiment(
        method__norm="group", privacy={"clip": 1.0, "noise": 4.0}, probe__every=1
    )
    run = fedssl.run(experiment, tmp_path / "run", "cpu", dataset=DATA)
    printed = capsys.readouterr().err
    for k, line in enumerate(run.rounds, 1):
        expected = gaussian_epsilon(4 / math.sqrt(k), 1e-5)
        assert line["privacy"]["epsilon"] == pytest.approx(expected, abs=1e-6)
        assert f"ε {expected:.3g}" in printed
    assert run.results["privacy"] == {
        "unit": "client", "epsilon": pytest.approx(expected), "delta": 1e-5, "noise": 4.0,
        "clip": 1.0, "releases": 2, "budget_spent": False,
    }  # fmt: skip
    header, _ = read_weights(run.dir / "backbone.safetensors")
    assert json.loads(header["privacy"]) == run.results["privacy"]
    assert "differential privacy" in header["notes"]


@pytest.mark.parametrize(
    "algorithm",
    ["fedavg", "fedavgm", "fedadam", "fedprox", "fedu", "fedema", "perssfl", "fedbn"],
)
def test_every_algorithm_that_reads_only_means(algorithm: str, tmp_path: Path) -> None:
    """Personal models are neither measured nor exported: noise does not cover them."""
    run = train(tmp_path / "run", {"noise": 0.1}, algorithm=algorithm)
    assert [line["failed"] for line in run.rounds] == [False, False]
    assert list(run.models()) in (["global"], []), "of FedBN there is no global model"
    assert len(list(read_charges(run.dir, print))) == 2


def test_fedbn_keeps_batch_norm_at_its_clients(tmp_path: Path) -> None:
    run = train(tmp_path / "run", {"noise": 0.1}, method={"norm": "batch"}, algorithm="fedbn")
    assert not any(line["failed"] for line in run.rounds)


def test_noise_does_not_come_from_the_seed(tmp_path: Path) -> None:
    one = train(tmp_path / "one", {"noise": 0.1})
    other = train(tmp_path / "other", {"noise": 0.1})
    assert weights(one) != weights(other)


def test_without_noise_a_run_is_reproducible_and_has_no_epsilon(tmp_path: Path) -> None:
    one = train(tmp_path / "one", {"noise": 0.0})
    other = train(tmp_path / "other", {"noise": 0.0})
    assert weights(one) == weights(other)
    assert one.results["privacy"]["epsilon"] is None
    assert "no guarantee" in one.results["notes"][0]


def test_nothing_in_the_log_depends_on_a_clients_images(tmp_path: Path) -> None:
    """Other images, also a client of two: equal lines, but for durations; no number of a client."""
    logs = []
    for seed in (1, 2):
        dataset = from_python(random_pixels(48, seed))
        run = train(tmp_path / str(seed), {"noise": 3.0}, dataset)
        lines = list(read_rounds(run.dir / "rounds.jsonl"))
        for line in lines:
            del line["seconds"]
            assert line["loss"] is None
            assert line["images_per_s"] == 0
            for client in line["clients"]:
                assert client.keys() == {"client", "dropped", "bytes_down"}
        logs.append(lines)
        text = json.dumps(run.results)
        for word in ("loss", "divergence", "embedding_std", "effective_rank", "notes/"):
            assert word not in text
    assert logs[0] == logs[1]


def test_a_client_that_fails_is_named_without_a_reason(tmp_path: Path) -> None:
    """A client of one image cannot train; it counts as zero, and the sum is still divided by 3."""
    parts = {"a": random_pixels(16, 1), "b": random_pixels(16, 2), "c": random_pixels(1, 3)}
    images = {name: part.permute(0, 2, 3, 1).numpy() for name, part in parts.items()}
    run = fedssl.run(
        make_experiment(method__norm="group", privacy={"clip": 1.0, "noise": 1.0}),
        tmp_path / "run",
        "cpu",
        dataset=images,
        quiet=True,
    )
    for line in run.rounds:
        dropped = {client["client"]: client["dropped"] for client in line["clients"]}
        assert dropped["a"] is None
        assert dropped["c"] is not None
        assert "withheld" in dropped["c"]
    assert len(list(read_charges(run.dir, print))) == 2


def test_a_checkpoint_has_no_norms_of_clients(tmp_path: Path) -> None:
    run = train(tmp_path / "run", {"noise": 1.0})
    snapshot = Store(run.dir).load(print)
    assert snapshot is not None
    assert snapshot.typical_update is None
    assert snapshot.releases == 2


# -- kills --


def test_a_kill_between_charge_and_release_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Round 2 is charged, killed, and computed again: three releases for two rounds."""
    noised_mean = ClippedSum.noised_mean
    releases = 0

    def kill_second(total: ClippedSum, clients: int) -> Any:
        nonlocal releases
        releases += 1
        if releases == 2:
            raise Killed
        return noised_mean(total, clients)

    monkeypatch.setattr(ClippedSum, "noised_mean", kill_second)
    with pytest.raises(Killed):
        train(tmp_path / "run", {"noise": 4.0})
    run = train(tmp_path / "run", {"noise": 4.0})
    check_three_charges(run)


def test_a_kill_between_release_and_checkpoint_is_charged(tmp_path: Path) -> None:
    """Round 2 was merged and logged, but not saved: it is computed with new noise."""
    with interrupted_in_round(2), pytest.raises(Interrupted):
        train(tmp_path / "run", {"noise": 4.0})
    run = train(tmp_path / "run", {"noise": 4.0})
    check_three_charges(run)


def check_three_charges(run: fedssl.Run) -> None:
    expected = gaussian_epsilon(4 / math.sqrt(3), 1e-5)
    assert [charge.round for charge in read_charges(run.dir, print)] == [1, 2, 2]
    assert run.rounds[-1]["privacy"]["epsilon"] == pytest.approx(expected, abs=1e-6)
    assert run.results["privacy"]["epsilon"] == pytest.approx(expected, abs=1e-6)
    assert run.results["privacy"]["releases"] == 3


@pytest.mark.parametrize("kept", [0, 1])
def test_a_ledger_that_lost_lines_is_refused(kept: int, tmp_path: Path) -> None:
    train(tmp_path / "run", {"noise": 4.0})
    for name in ("privacy.jsonl", "privacy.jsonl.copy"):
        path = tmp_path / "run" / name
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:kept]))
    with raises(RunError):
        train(tmp_path / "run", {"noise": 4.0}, rounds=3)


def test_a_finished_run_with_a_shorter_ledger_is_not_measured_again(tmp_path: Path) -> None:
    """Otherwise results.json would have the ε of fewer releases."""
    train(tmp_path / "run", {"noise": 4.0})
    for name in ("privacy.jsonl", "privacy.jsonl.copy"):
        path = tmp_path / "run" / name
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:1]))
    with raises(RunError):
        train(tmp_path / "run", {"noise": 4.0}, probe__k=3)


@pytest.mark.parametrize(
    ("privacy", "other"),
    [({"noise": 4.0}, {"noise": 1000.0}), ({"epsilon": 3.0}, {"epsilon": 1.0})],
)
def test_the_ledger_of_another_run_is_refused(
    privacy: dict[str, Any], other: dict[str, Any], tmp_path: Path
) -> None:
    """Its noise is larger, so that ε would be too small; computed noise is not in the settings."""
    train(tmp_path / "run", privacy)
    train(tmp_path / "other", other)
    for name in ("privacy.jsonl", "privacy.jsonl.copy"):
        shutil.copy(tmp_path / "other" / name, tmp_path / "run" / name)
    with raises(RunError):
        train(tmp_path / "run", privacy, probe__k=3)
    with raises(RunError):
        train(tmp_path / "run", privacy, rounds=3)


def test_results_state_that_accuracies_are_not_covered(tmp_path: Path) -> None:
    """With labels, kNN learns from the clients' images; without, nothing is measured."""
    labelled = train(tmp_path / "labelled", {"noise": 4.0})
    assert labelled.results["notes"][1] == UNCOVERED
    unlabelled = train(tmp_path / "not", {"noise": 4.0}, from_python(random_pixels(48, 1)))
    assert UNCOVERED not in unlabelled.results["notes"]


def test_results_have_no_hash_of_the_clients_images(tmp_path: Path) -> None:
    """With a hash, an attacker could confirm a guess of all images of a client."""
    run = train(tmp_path / "run", {"noise": 4.0})
    assert {"training_images", "checkpoints"}.isdisjoint(run.results)


def test_results_have_no_hash_of_the_clients_labels(tmp_path: Path) -> None:
    """Of the labels, only those of the test images are hashed, which are the same in both runs."""
    pixels, labels = bright_pixels(48)
    hashes = []
    for name, training in (("one", labels), ("other", labels.flip(0))):
        dataset = from_python((pixels, training), bright_pixels(24, 1))
        hashes.append(train(tmp_path / name, {"noise": 4.0}, dataset).results["labels"])
    assert hashes[0] is not None
    assert hashes[0] == hashes[1]


def test_no_baseline_trains_without_noise_unless_it_is_named(tmp_path: Path) -> None:
    """By default, clients also train alone; their accuracies would be in the results."""
    run = train(tmp_path / "run", {"noise": 4.0}, probe__baselines=None)
    assert run.results["table"].keys() == {"this run", "random"}
    assert not (run.dir / "isolated").exists()


def test_the_log_too_shows_that_the_ledger_lost_a_line(tmp_path: Path) -> None:
    """The checkpoint is of round 1, but the log has two releases, and the ledger only one."""
    with interrupted_in_round(2), pytest.raises(Interrupted):
        train(tmp_path / "run", {"noise": 4.0})
    for name in ("privacy.jsonl", "privacy.jsonl.copy"):
        path = tmp_path / "run" / name
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:1]))
    with raises(RunError):
        train(tmp_path / "run", {"noise": 4.0})


def test_a_damaged_ledger_is_repaired(tmp_path: Path) -> None:
    run = train(tmp_path / "run", {"noise": 4.0})
    path = run.dir / "privacy.jsonl"
    intact = path.read_bytes()
    path.write_bytes(intact.replace(b"4.0", b"9.0", 1))
    assert not undamaged(run.dir)
    train(tmp_path / "run", {"noise": 4.0}, rounds=3)
    assert path.read_bytes().startswith(intact)
    assert undamaged(run.dir)


# -- the budget --


def test_training_ends_at_the_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """σ = 4: ε = 0.929 after one round, 1.364 after two, 1.712 after three; the budget is 1.5."""
    privacy = {"noise": 4.0, "epsilon": 1.5}
    experiment = make_experiment(method__norm="group", privacy={"clip": 1.0, **privacy}, rounds=6)
    run = fedssl.run(experiment, tmp_path / "run", "cpu", dataset=DATA)
    assert len(run.rounds) == 2
    assert "training ends after round 2 of 6" in capsys.readouterr().err
    assert run.results["privacy"]["budget_spent"]
    assert run.results["privacy"]["epsilon"] <= 1.5
    assert "budget was spent" in run.results["notes"][0]
    assert summarise(run.dir).state == "finished"
    again = fedssl.run(experiment, tmp_path / "run", "cpu", dataset=DATA)
    assert "finished already, after 2 rounds" in capsys.readouterr().err
    assert again.results == run.results
    assert len(list(read_charges(run.dir, print))) == 2


def test_noise_is_computed_from_the_budget(tmp_path: Path) -> None:
    run = train(tmp_path / "run", {"epsilon": 3.0}, rounds=3)
    assert len(run.rounds) == 3
    assert 3 - 1e-5 < run.results["privacy"]["epsilon"] <= 3
    noise = run.results["privacy"]["noise"]
    assert gaussian_epsilon(noise / math.sqrt(3), 1e-5) == pytest.approx(3, abs=1e-5)


def test_with_computed_noise_a_kill_costs_a_round(tmp_path: Path) -> None:
    """The budget is for two releases; one was lost, so that training ends after round 1."""
    with interrupted_in_round(2), pytest.raises(Interrupted):
        train(tmp_path / "run", {"epsilon": 3.0})
    run = train(tmp_path / "run", {"epsilon": 3.0})
    assert len(run.rounds) == 1
    assert run.results["privacy"]["releases"] == 2
    assert run.results["privacy"]["epsilon"] <= 3


def test_a_run_whose_budget_is_spent_before_its_first_round_has_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The budget is for one release, which a kill lost: an untrained model must not be exported."""

    def kill(total: ClippedSum, clients: int) -> Any:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(ClippedSum, "noised_mean", kill)
        with pytest.raises(Killed):
            train(tmp_path / "run", {"epsilon": 3.0}, rounds=1)
    with raises(RunError):
        train(tmp_path / "run", {"epsilon": 3.0}, rounds=1)
    assert not (tmp_path / "run" / "backbone.safetensors").exists()


def test_a_client_is_charged_for_its_own_rounds(tmp_path: Path) -> None:
    """Two of three clients in each of four rounds: the one asked most often, not all four."""
    run = train(
        tmp_path / "run", {"noise": 4.0}, rounds=4, topology={"name": "star", "participation": 0.6}
    )
    asked: dict[str, int] = {}
    for line in run.rounds:
        assert len(line["clients"]) == 2
        for client in line["clients"]:
            asked[client["client"]] = asked.get(client["client"], 0) + 1
    most = max(asked.values())
    expected = gaussian_epsilon(4 / math.sqrt(most), 1e-5)
    assert run.results["privacy"]["epsilon"] == pytest.approx(expected, abs=1e-6)


def test_a_budget_below_one_round_is_an_error(tmp_path: Path) -> None:
    with raises(ConfigError):
        train(tmp_path / "run", {"noise": 1.0, "epsilon": 0.5})
    run = train(tmp_path / "run", {"noise": 40.0, "epsilon": 0.5})
    assert len(run.rounds) == 2, "the refused start does not block the corrected one"


def test_the_live_status_of_a_private_run_has_nothing_of_its_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = []
    monkeypatch.setattr(live_status, "write_live", lambda folder, state: states.append(state))
    train(tmp_path / "run", {"noise": 3.0})
    assert states
    for state in states:
        assert state.private
        for client in state.clients.values():
            assert client == LiveClient("training")


def test_a_private_run_prints_no_number_of_images_of_a_client(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without privacy, the same run gives advice for the median client."""
    queue = {"name": "mocov2", "queue": 4096, "backbone": "cnn", "norm": "group"}
    changes = {"rounds": 1, "method": queue}
    experiment = make_experiment(**changes)
    fedssl.run(experiment, tmp_path / "open", "cpu", dataset=DATA)
    assert "the median client has" in capsys.readouterr().err
    private = make_experiment(**changes, privacy={"clip": 1.0, "noise": 1.0})
    fedssl.run(private, tmp_path / "private", "cpu", dataset=DATA)
    assert "the median client has" not in capsys.readouterr().err
