"""Evaluation computes in float32 whatever the process allows elsewhere: the flags are tested, which
needs no CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from factories import known_settings, make_experiment, random_pixels

from fedssl.core.devices.precision import float32
from fedssl.data import Dataset, Images
from fedssl.evaluation import evaluate
from fedssl.evaluation.evaluate import Evaluation, predict_labels
from fedssl.experiment import federation_setup
from fedssl.experiment.experiment import Experiment

CPU = torch.device("cpu")
FAST = (True, "high")
WHOLE = (False, "highest")


def flags() -> tuple[bool, str]:
    return torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()


@pytest.fixture(autouse=True)
def _tf32_is_allowed() -> Iterator[None]:
    convolutions, products = flags()
    torch.backends.cudnn.allow_tf32 = True
    torch.set_float32_matmul_precision("high")
    yield
    torch.backends.cudnn.allow_tf32 = convolutions
    torch.set_float32_matmul_precision(products)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[bool, str]]:
    """Record the flags that each part of an evaluation observes."""
    observed: dict[str, tuple[bool, str]] = {}

    def spied(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **how: Any) -> Any:
            observed[name] = flags()
            return real(*args, **how)

        return call

    for name in ("embed", "knn_predict", "linear_predict", "fine_tune", "build_method"):
        monkeypatch.setattr(evaluate, name, spied(name, getattr(evaluate, name)))
    return observed


def experiment(method: str = "simclr") -> Experiment:
    return make_experiment(
        clients=1,
        method={"name": method, **known_settings(method, {"classes": 3})},
        probe={"epochs": 1, "labels": 10},
    )


def images(n: int) -> Images:
    return Images(random_pixels(n), torch.arange(n) % 3)


def test_probes_compute_in_float32(seen: dict[str, tuple[bool, str]]) -> None:
    data = Dataset(images(30), images(12))
    chosen = experiment()
    models = {"global": federation_setup.build_method(chosen, (3, 8, 8), CPU).state}
    Evaluation(chosen, data, CPU).measure(models, ("knn", "linear", "semi"))
    assert seen == dict.fromkeys(("embed", "knn_predict", "linear_predict", "fine_tune"), WHOLE)
    assert flags() == FAST


def test_features_and_classes_too(seen: dict[str, tuple[bool, str]]) -> None:
    data = Dataset(images(30), images(12))
    chosen = experiment("supervised")
    state = federation_setup.build_method(chosen, (3, 8, 8), CPU).state
    Evaluation(chosen, data, CPU).features(state, images(4).pixel_rows)
    predict_labels(chosen, state, images(4).pixel_rows, CPU)
    assert seen == {"embed": WHOLE, "build_method": WHOLE}
    assert flags() == FAST


@float32()
def failing() -> None:
    assert flags() == WHOLE
    raise ZeroDivisionError


def test_flags_are_restored_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError):
        failing()
    assert flags() == FAST
