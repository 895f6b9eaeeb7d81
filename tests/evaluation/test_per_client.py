"""Each client's model on all test images, and in the client's own mix of classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from error_messages import raises
from factories import bright_pixels, make_experiment

import fedssl
from fedssl.core.errors import ConfigError
from fedssl.core.state.state import State
from fedssl.data import Dataset, Images
from fedssl.evaluation.models import Models
from fedssl.evaluation.per_client import client_models, weighted
from fedssl.experiment.experiment import Experiment

# Each class is a little brighter than the one before, under much noise.
IMAGES: dict[str, Any] = {"classes": 6, "noise": 100, "step": 20, "size": 8}


def experiment(**changes: Any) -> Experiment:
    two_classes = {"name": "classes", "per_client": 2}
    usual = {"rounds": 1, "method": "simclr", "partition": two_classes}
    return make_experiment(usual, **changes)


def images(n: int, seed: int) -> Images:
    return Images(*bright_pixels(n, seed, **IMAGES))


def finished(tmp_path: Path, **changes: Any) -> fedssl.Run:
    data = Dataset(images(120, 0), images(60, 1))
    return fedssl.run(experiment(**changes), tmp_path / "run", "cpu", dataset=data, quiet=True)


def test_weighted_by_hand() -> None:
    """Right about 8 of 10, 1 of 5 and 0 of 5 images of three classes.

    With 3, 1 and 0 images of them: 3/4 · 0.8 + 1/4 · 0.2 = 0.65. A fourth class, untested, does not
    count.
    """
    confusion = torch.tensor([[8, 2, 0, 0], [4, 1, 0, 0], [5, 0, 0, 0], [0, 0, 0, 0]])
    assert weighted(confusion, torch.tensor([3, 1, 0, 0])) == pytest.approx(65)
    assert weighted(confusion, torch.tensor([3, 1, 0, 7])) == pytest.approx(65)
    mix_of_test_images = torch.tensor([10, 5, 5, 0])
    assert weighted(confusion, mix_of_test_images) == pytest.approx(45)
    assert weighted(confusion, torch.tensor([0, 0, 0, 7])) is None


@pytest.mark.parametrize("topology", ["isolated", "cycle", "star"])
def test_every_client_by_its_own_model(topology: str, tmp_path: Path) -> None:
    """The accuracy is that of the linear probe for the client's model.

    In its own mix it is the mean accuracy of its two classes, 2k and 2k + 1 for client k, because
    it has as many images of either.
    """
    run = finished(tmp_path, topology__name=topology)
    score = run.evaluate("per-client")
    plain = run.evaluate("linear")
    assert list(score) == ["0", "1", "2"]
    for k, client in enumerate(score):
        model = "global" if topology == "star" else client
        assert score[client] == plain[model]
        assert score.confusion[client] == plain.confusion[model]
        first, second = (plain.per_class[model][c] for c in (2 * k, 2 * k + 1))
        assert first is not None
        assert second is not None
        assert score.own_mix[client] == pytest.approx((first + second) / 2)
    assert len({*score.own_mix.values(), *score.values()}) > 1
    assert score.excluded == frozenset()
    assert json.loads(json.dumps(score.details()))["own_mix"] == score.own_mix
    assert score.details()["own_mix_mean"] == pytest.approx(
        sum(filter(None, score.own_mix.values())) / 3, abs=1e-4
    )
    score.own_mix["3"] = None  # of whose classes there are no test images
    assert score.own_mix_mean == pytest.approx(
        sum(filter(None, score.own_mix.values())) / 3, abs=1e-4
    )
    assert "own_mix" not in plain.details()


def test_clients_own_models_and_not_the_shared_one(tmp_path: Path) -> None:
    run = finished(tmp_path, algorithm__name="fedbn")
    score = run.evaluate("per-client")
    assert list(score) == ["0", "1", "2"]
    plain = run.evaluate("linear")
    assert {**score} == {client: plain[client] for client in score}
    assert score.mean == pytest.approx(plain.mean)


def test_clients_without_a_model_are_counted(tmp_path: Path) -> None:
    changes = {
        "algorithm__name": "perssfl",
        "topology__participation": 0.4,
        "guard__min_uploads": 1,
    }
    score = finished(tmp_path, **changes).evaluate("per-client")
    assert len(score) == 1
    assert score.note == "2 of 3 clients do not have their own model yet"


def test_the_model_of_each_client() -> None:
    """Clients' own models if there are any; else the only model; else an error."""
    a, b, c = (object.__new__(State) for _ in range(3))
    own = client_models(Models({"0": a, "2": b}, {"global": c}, ["global"]), ["0", "1", "2"])
    assert {name: own[name] for name in own} == {"0": a, "2": b}
    shared = client_models(Models({}, {"global": c}, []), ["0", "1"])
    assert {name: shared[name] for name in shared} == {"0": c, "1": c}
    with raises(ConfigError):
        client_models(Models({}, {"x": a, "y": b}, []), ["0", "1"])


def test_a_client_with_the_name_of_a_shared_model() -> None:
    """The name does not make the model its own: all clients have it, or this client has none."""
    a, b, c = (object.__new__(State) for _ in range(3))
    shared = client_models(Models({}, {"global": c}, []), ["global", "1"])
    assert {name: shared[name] for name in shared} == {"global": c, "1": c}
    some = client_models(Models({"0": a, "2": b}, {"global": c}, ["global"]), ["0", "global", "2"])
    assert {name: some[name] for name in some} == {"0": a, "2": b}
    own = client_models(
        Models({"global": a, "1": b}, {"s/global": c}, ["s/global"]), ["global", "1"]
    )
    assert {name: own[name] for name in own} == {"global": a, "1": b}


def test_every_client_is_measured_whatever_they_are_called(tmp_path: Path) -> None:
    owners = {"global": torch.arange(0, 60), "mean": torch.arange(60, 120)}
    data = Dataset(images(120, 0), images(60, 1), owners)
    chosen = experiment(partition={"name": "natural"}, clients=0)
    run = fedssl.run(chosen, tmp_path / "run", "cpu", dataset=data, quiet=True)
    score = run.evaluate("per-client")
    assert list(score) == ["global", "mean"]
    assert {*score.values()} == {run.evaluate("linear")["global"]}


def test_classes_must_be_known(tmp_path: Path) -> None:
    data = Dataset(Images(images(60, 0).pixels), images(60, 1))
    chosen = experiment(partition__name="iid")
    run = fedssl.run(chosen, tmp_path / "run", "cpu", dataset=data, quiet=True)
    with raises(ConfigError):
        run.evaluate("per-client")
