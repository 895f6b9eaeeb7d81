"""Images left out of pre-training: no client has them, and `semi` learns from exactly these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from error_messages import raises
from factories import make_experiment, numbered_pixels
from torch import Tensor

import fedssl
from fedssl.analysis import analyse
from fedssl.core.errors import ConfigError
from fedssl.core.state.state import State
from fedssl.data import Dataset, Images
from fedssl.evaluation.evaluate import Evaluation
from fedssl.evaluation.labelled_images import HALVED, SEEN
from fedssl.evaluation.probe_settings import with_probe_settings
from fedssl.experiment import federation_setup
from fedssl.experiment.client_data import left_out, partition_data, public_rows
from fedssl.experiment.experiment import Experiment

CPU = torch.device("cpu")


def experiment(**changes: Any) -> Experiment:
    probe = {"epochs": 2, "labels": 7, "linear": True}
    usual = {"clients": 4, "rounds": 1, "method": "simclr", "probe": probe}
    return make_experiment(usual, **changes)


def images(n: int, seed: int) -> Images:
    """Return images of five classes; the first pixel is the number of the image."""
    return Images(numbered_pixels(n, seed), torch.arange(n) % 5)


def dataset() -> Dataset:
    return Dataset(images(200, 0), images(20, 1))


def state() -> State:
    return federation_setup.build_method(experiment(), (3, 8, 8), CPU).state


def few(chosen: Experiment, data: Dataset | None = None) -> Any:
    return Evaluation(chosen, data or dataset(), CPU).images.fine_tuning_subset


def numbers(pixels: Tensor) -> list[int]:
    return pixels[:, 0, 0, 0].tolist()


@pytest.mark.parametrize("partition", ["iid", "classes", "dirichlet"])
@pytest.mark.parametrize("topology", ["star", "isolated", "centralized"])
def test_no_client_has_images_that_are_left_out(partition: str, topology: str) -> None:
    """No shard has any of them; every other image stays with its client."""
    changes: dict[str, Any] = {"partition__name": partition, "topology__name": topology}
    if partition == "classes":
        changes |= {"partition__per_client": 5}
    if partition == "dirichlet":
        changes |= {"partition__alpha": 10.0}
    chosen = experiment(**changes)
    data = dataset()
    left = left_out(experiment(data__leave_out=0.1), data)
    assert data.train.labels[left].bincount().tolist() == [4] * 5
    _, before = partition_data(chosen, data, print)
    seen, owners = partition_data(chosen.with_changes({"data.leave_out": 0.1}), data, print)
    shards = federation_setup.shards(seen, owners, [CPU])
    held = [number for shard in shards.values() for number in numbers(shard.pixels[CPU].tensor())]
    assert not set(held) & set(left.tolist())
    assert sorted([*held, *left.tolist()]) == list(range(200))
    for client, index in before.items():
        assert owners[client].tolist() == [
            row for row in index.tolist() if row not in set(left.tolist())
        ]


def test_the_seed_draws_the_images() -> None:
    first, again, other = (
        left_out(experiment(data__leave_out=0.1, seed=seed), dataset()).tolist()
        for seed in (0, 0, 1)
    )
    assert first == again == sorted(set(first))
    assert first != other
    assert left_out(experiment(), dataset()).tolist() == []


def test_public_images_are_not_left_out() -> None:
    """Clients train with public images too. Of 200, 20 are public and 160 left out."""
    chosen = experiment(algorithm__name="fedca", data__leave_out=0.8)
    public = public_rows(chosen, dataset())
    left = left_out(chosen, dataset())
    assert (len(public), len(left)) == (20, 160)
    assert not set(public.tolist()) & set(left.tolist())
    _, owners = partition_data(chosen, dataset(), lambda line: None)
    assert sum(map(len, owners.values())) == 20


def test_classes_must_be_known() -> None:
    data = Dataset(Images(images(20, 0).pixels), images(20, 1))
    with raises(ConfigError):
        partition_data(experiment(data__leave_out=0.1), data, print)


def test_semi_learns_from_the_images_left_out() -> None:
    chosen = experiment(data__leave_out=0.1)
    left = left_out(chosen, dataset()).tolist()
    for settings in ({}, {"labels": 0.1}, {"labels": 20}):
        labelled = few(with_probe_settings(chosen, "semi", settings))
        assert numbers(labelled.images.pixels) == left
        assert torch.equal(labelled.images.labels, dataset().train.labels[left])
        assert (labelled.share, labelled.note) == (0.1, None)
    some = few(with_probe_settings(chosen, "semi", {"labels": 10}))
    assert set(numbers(some.images.pixels)) < set(left)
    assert some.images.labels.bincount().tolist() == [2] * 5
    assert some.note is None


@pytest.mark.parametrize(
    ("leave_out", "labels", "count"), [(0.0, 0, 2), (0.0, 0.1, 20), (0.1, 0.2, 40), (0.1, 1, 200)]
)
def test_a_note_if_images_were_used_in_training(
    leave_out: float, labels: float, count: int
) -> None:
    labelled = few(
        with_probe_settings(experiment(data__leave_out=leave_out), "semi", {"labels": labels})
    )
    why = (
        "data.leave_out kept only 20 of them out"
        if leave_out
        else "set data.leave_out to keep them out"
    )
    assert (len(labelled.images.labels), labelled.note) == (count, f"{SEEN}: {why}")


def test_halves_of_the_test_images_were_not_used_in_training() -> None:
    data = Dataset(Images(images(200, 0).pixels), images(20, 1))
    score = Evaluation(experiment(probe__labels=5), data, CPU).measure({"x": state()}, ("semi",))[
        "semi"
    ]
    assert score.note == HALVED


def test_an_experiments_own_settings_are_the_linear_probes() -> None:
    chosen = with_probe_settings(experiment(), "semi", {"batch": 3}).probe
    assert (chosen.labels, chosen.epochs, chosen.lr, chosen.batch) == (0, None, None, 3)
    kept = with_probe_settings(experiment(), "linear", {"batch": 3}).probe
    assert (kept.labels, kept.epochs, kept.lr, kept.batch) == (7, 2, None, 3)


def test_fine_tuning_leaves_the_model_alone() -> None:
    model = state()
    evaluation = Evaluation(experiment(probe__labels=20), dataset(), CPU)
    before = model.floats.clone()
    scores = evaluation.measure({"x": model}, ("knn", "semi"))
    assert torch.equal(model.floats, before)
    assert scores["semi"].note == f"{SEEN}: set data.leave_out to keep them out"
    assert scores["knn"].note is None
    assert sum(map(sum, scores["semi"].confusion["x"])) == 20


def test_a_run_that_left_images_out(tmp_path: Path) -> None:
    run = fedssl.run(
        experiment(data__leave_out=0.1), tmp_path / "run", "cpu", dataset=dataset(), quiet=True
    )
    assert sum(client["images"] for client in run.rounds[0]["clients"]) <= 180
    score = run.evaluate("semi", epochs=1)
    assert list(score) == ["global"]
    assert score.note is None
    assert (
        run.evaluate("semi", epochs=1, labels=0.3).note
        == f"{SEEN}: data.leave_out kept only 20 of them out"
    )
    # With ten more images, those left out cannot be identified.
    others = Dataset(images(210, 0), images(20, 1))
    now = fedssl.Run(run.dir, device="cpu", dataset=others)
    for asks in ("semi", "per-client", "collaborative"):
        with raises(ConfigError):
            now.evaluate(asks, epochs=1)
    for kind, settings in (("weights", {"local": True}), ("false-negatives", {})):
        with raises(ConfigError):
            analyse(kind, now, **settings)
    # Other probes do not depend on which client had which images.
    assert now.evaluate("knn").labelled == 210
