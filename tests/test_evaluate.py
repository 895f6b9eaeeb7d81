"""Measuring models: the exported backbone is the trained one, and every probe sees the same features."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
import torch

from fedssl import assemble
from fedssl.data import Dataset, Images
from fedssl.errors import ConfigError
from fedssl.evaluate import Evaluation, Score, backbone_of
from fedssl.experiment import Experiment
from fedssl.tree import State

CPU = torch.device("cpu")


def experiment(**probe: Any) -> Experiment:
    return Experiment.from_dict(
        {
            "data": {"name": "given", "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]},
            "method": {"name": "byol", "backbone": "cnn", "hidden": 8, "dim": 4},
            "probe": {"epochs": 30, "k": 5, **probe},
        }
    )


def images(n: int, seed: int, labelled: bool = True) -> Images:
    """Three classes, each bright in a channel of its own."""
    labels = torch.arange(n) % 3
    noise = torch.randint(100, (n, 3, 8, 8), generator=torch.Generator().manual_seed(seed))
    noise[torch.arange(n), labels] += 150
    return Images(noise.to(torch.uint8), labels if labelled else None)


DATA = Dataset(images(60, 0), images(30, 1))


def state(seed: int = 0) -> State:
    changed = experiment().with_changes({"seed": seed})
    return assemble.build_method(changed, (3, 8, 8), CPU).state


def test_features_are_those_of_the_method_itself() -> None:
    method = assemble.build_method(experiment(), (3, 8, 8), CPU)
    method.state.view(method.state.layout.entries[0]).mul_(1.5)
    method.eval()
    with torch.no_grad():
        expected = method.encode(method.clean(DATA.train.pixels)).h
    random = torch.get_rng_state()
    got = Evaluation(experiment(), DATA, CPU).features(method.state, DATA.train.pixels)
    assert torch.equal(torch.get_rng_state(), random)
    torch.testing.assert_close(got, expected)


def test_a_backbone_of_its_own() -> None:
    """Filled from a model, in eval mode, and sharing no memory with it."""
    model = state()
    backbone = backbone_of(model, assemble.build_backbone(experiment(), 3))
    assert not backbone.training
    expected = {e.name.removeprefix("backbone."): model.view(e) for e in model.layout.entries if e.part == "backbone"}
    found = backbone.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    before = found["layers.0.0.weight"].clone()
    model.floats.zero_()
    assert torch.equal(backbone.state_dict()["layers.0.0.weight"], before)


def test_every_probe_for_every_model() -> None:
    scores = Evaluation(experiment(), DATA, CPU).measure({"x": state(0), "y": state(1)}, ("knn", "linear"))
    assert {probe: list(score) for probe, score in scores.items()} == {"knn": ["x", "y"], "linear": ["x", "y"]}
    assert all(value > 90 for score in scores.values() for value in score.values())
    again = Evaluation(experiment(), DATA, CPU).measure({"x": state(0)}, ("linear",))
    assert again["linear"]["x"] == scores["linear"]["x"]


def test_few_labels_are_few() -> None:
    """With one image of each class the linear probe knows less than with all."""
    evaluation = Evaluation(experiment(labels=3, epochs=1), DATA, CPU)
    all_labels = Evaluation(experiment(), DATA, CPU)
    one = evaluation.measure({"x": state()}, ("linear",))["linear"].mean
    assert one < all_labels.measure({"x": state()}, ("linear",))["linear"].mean


def test_without_labels_there_is_nothing_to_measure() -> None:
    for data in (
        Dataset(images(6, 0)),
        Dataset(images(6, 0, labelled=False), images(6, 1)),
        Dataset(images(6, 0), images(6, 1, False)),
    ):
        evaluation = Evaluation(experiment(), data, CPU)
        assert not evaluation.possible
        with pytest.raises(ConfigError, match="probes need labelled"):
            evaluation.measure({"x": state()}, ("knn",))


def test_an_unknown_probe() -> None:
    with pytest.raises(ConfigError, match='unknown probe "lineer", did you mean "linear"'):
        Evaluation(experiment(), DATA, CPU).measure({"x": state()}, ("lineer",))


def test_scores() -> None:
    score = Score(a=10.0, b=20.0, c=60.0)
    assert (score.mean, score.std) == (30.0, statistics.stdev([10, 20, 60]))
    assert score.summary() == {"mean": 30.0, "std": score.std, "models": {"a": 10.0, "b": 20.0, "c": 60.0}}
    assert Score(a=5.0).summary() == {"mean": 5.0}
    assert Score(a=5.0).std == 0
