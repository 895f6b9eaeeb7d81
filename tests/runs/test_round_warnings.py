"""The warning about a training loss that stays near that of random guessing."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from factories import (
    bright_pixels,
    known_settings,
    make_experiment,
    make_method,
    random_pixels,
)
from torch import Tensor

import fedssl
from fedssl.algorithm import ALGORITHMS
from fedssl.method import Output
from fedssl.runs.round_warnings import ROUNDS, NearChance
from fedssl.runs.rounds_log import read_rounds

BATCH = 6
WARNING = "has stayed near that of random guessing"


def line(number: int, *losses: float, batch: int = 8) -> dict[str, Any]:
    """Return the record of a round in which each client has trained 4 batches."""
    clients: list[dict[str, Any]] = [{"client": "x", "dropped": "late"}]
    for loss in losses:
        clients.append({"client": "a", "loss": loss, "images": 4 * batch, "steps": 4})
    return {"round": number, "clients": clients}


def warned(*losses: float) -> list[int]:
    """Return the rounds that caused a warning, if the loss of random guessing is 1."""
    detector = NearChance(lambda batch: 1.0)
    rounds = []
    for number, loss in enumerate(losses, 1):
        if detector.update(line(number, loss)) is not None:
            rounds.append(number)
    return rounds


# -- the level --


def constant(*shape: int) -> Tensor:
    """Return rows of unit length that are all the same."""
    return torch.ones(*shape) / shape[-1] ** 0.5


def test_simclr_with_equal_projections_is_at_chance() -> None:
    method = make_method("simclr")
    z = constant(2, BATCH, 5)
    assert method.chance_loss(BATCH) == pytest.approx(float(method.loss(Output(z, z, z), {})))


@pytest.mark.parametrize("name", ["mocov1", "mocov2"])
def test_moco_with_equal_keys_is_at_chance(name: str) -> None:
    method = make_method(name)
    z = constant(2, BATCH, 5)
    method.queue.keys.copy_(constant(*method.queue.keys.shape))
    loss = method.loss(Output(z, z, z, keys=z), {})
    assert method.chance_loss(BATCH) == pytest.approx(float(loss))


def test_rotation_with_equal_logits_is_at_chance() -> None:
    method = make_method("rotation")
    z = torch.zeros(4, BATCH, 4)
    assert method.chance_loss(BATCH) == pytest.approx(float(method.loss(Output(z, z, z), {})))
    assert method.chance_loss(BATCH) == pytest.approx(math.log(4))


def test_methods_without_a_level_have_none() -> None:
    assert make_method("byol").chance_loss(BATCH) is None
    assert make_method("simsiam").chance_loss(BATCH) is None


def test_an_objective_with_further_terms_has_no_level() -> None:
    """FedProx adds a term, FedEMA changes only the weights."""
    method = make_method("simclr")
    levels = {}
    for name in ("fedavg", "fedema", "fedprox"):
        levels[name] = ALGORITHMS[name]().chance_loss(method, BATCH)
    assert levels == {"fedavg": math.log(11), "fedema": math.log(11), "fedprox": None}


# -- the warning --


def test_a_loss_near_chance_warns_once_after_five_rounds() -> None:
    assert ROUNDS == 5
    assert warned(*[1.0] * 12) == [5]
    assert warned(0.9, *[0.99] * 12) == [6]
    assert warned(*[1.0] * 5, 0.5, *[1.0] * 5) == [5]


def test_a_loss_that_falls_does_not_warn() -> None:
    assert warned(*[1.0] * 4, 0.97, *[1.0] * 4) == []
    assert warned(*[0.97] * 12) == []


def test_clients_count_by_their_images_and_their_batches() -> None:
    """One client is at chance, log 15, the other far below: the mean is not near chance."""
    method = make_method("simclr")
    for other, expected in ((0.1, False), (math.log(15), True)):
        detector = NearChance(method.chance_loss)
        found = [detector.update(line(n, math.log(15), other)) for n in range(ROUNDS)]
        assert (found[-1] is not None) == expected


def test_rounds_without_training_and_impossible_counts_are_skipped() -> None:
    method = make_method("simclr")
    detector = NearChance(method.chance_loss, [line(n, 9.0) for n in range(ROUNDS - 1)])
    assert detector.update(line(5)) is None
    assert detector.update(line(6, 9.0, batch=0)) is None
    assert detector.update({"clients": [{"loss": 9.0, "images": 3, "steps": 0}]}) is None
    assert detector.update(line(7, 9.0)) is not None


def test_a_resumed_run_does_not_warn_again() -> None:
    detector = NearChance(lambda batch: 1.0, [line(n, 1.0) for n in range(ROUNDS)])
    assert detector.update(line(6, 1.0)) is None


def test_none_of_the_runs_in_results_is_near_chance() -> None:
    """The largest share of chance in any of their rounds is 0.967; the warning needs 0.98."""
    shares = {}
    for log in sorted((Path(__file__).parents[2] / "results").glob("*/*/rounds.jsonl")):
        file = log.with_name("experiment.toml")
        if not file.is_file():
            continue
        values = tomllib.loads(file.read_text("utf-8"))
        name = values["method"]["name"]
        method = make_method(name, **known_settings(name, {"queue": 4096}))
        algorithm = ALGORITHMS[values["algorithm"]["name"]].model_construct()
        level = algorithm.chance_loss(method, values["train"]["batch"])
        if level is not None:
            losses = [record["loss"] for record in read_rounds(log)]
            shares[log.parent.name] = max(losses) / level
    assert len(shares) == 6
    assert max(shares.values()) == pytest.approx(0.967, abs=5e-4)


def run(folder: Path, images: Tensor, crop: list[float]) -> None:
    """Train SimCLR for 7 rounds with crops of this share of an image."""
    experiment = make_experiment(
        rounds=7,
        clients=2,
        method={"name": "simclr", "hidden": 32, "dim": 16, "temperature": 0.5},
        train={"batch": 32, "lr": 0.05},
    ).with_changes({"method.augment.crop": crop})
    fedssl.run(experiment, folder, "cpu", dataset=images)


def test_noise_with_very_strong_views_warns(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Crops of a hundredth of an image have nothing in common, and noise has no structure."""
    run(tmp_path / "run", random_pixels(64, size=32), crop=[0.01, 0.01])
    assert capfd.readouterr().err.count(WARNING) == 1


def test_images_with_mild_views_do_not_warn(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pixels, _ = bright_pixels(64, classes=3, size=32)
    run(tmp_path / "run", pixels, crop=[0.6, 1.0])
    assert WARNING not in capfd.readouterr().err
