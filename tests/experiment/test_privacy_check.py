"""C5, C6: experiments for which no guarantee of [privacy] would hold are rejected at the start."""

from __future__ import annotations

from typing import Any

import pytest
from error_messages import raises
from factories import default_experiment, needs_patches

from fedssl.core.errors import ConfigError
from fedssl.experiment import privacy_check
from fedssl.experiment.experiment import Experiment
from fedssl.method import METHODS

PRIVATE = {"privacy": {"clip": 1.0, "noise": 1.0}, "method__norm": "group"}


def test_it_is_off_by_default_and_leaves_the_hash_unchanged() -> None:
    experiment = default_experiment()
    assert not experiment.privacy.enabled
    assert "privacy" not in experiment.to_dict()
    assert default_experiment(**PRIVATE).hash() != default_experiment(method__norm="group").hash()


def test_it_is_written_and_read() -> None:
    experiment = default_experiment(**PRIVATE)
    experiment.check()
    assert Experiment.from_toml(experiment.to_toml()) == experiment
    assert experiment.with_changes({"privacy.noise": 2.0}).privacy.noise == 2


@pytest.mark.rows("C5", "C6")
@pytest.mark.parametrize(
    "privacy",
    [
        {"kind": "dp-sgd", "clip": 1.0, "noise": 1.0},
        {"noise": 1.0},
        {"clip": 1.0},
        {"clip": 1.0, "noise": 0.0, "epsilon": 8.0},
        {"clip": 0.0, "noise": 1.0},
        {"clip": 1.0, "noise": -1.0},
        {"clip": 1.0, "noise": 1.0, "delta": 1.0},
        {"clipp": 1.0, "noise": 1.0},
    ],
)
def test_invalid_privacy_settings(privacy: dict[str, Any]) -> None:
    with raises(ConfigError):
        default_experiment(privacy=privacy)


@pytest.mark.rows("C5")
@pytest.mark.parametrize(
    "changes",
    [
        {"method__norm": "batch"},
        {"algorithm": {"name": "fedbn", "eval_norm": "mean"}, "method__norm": "batch"},
        {"algorithm": "ccl", "method__name": "mocov2"},
        {"algorithm": "fedca"},
        {"algorithm": "featarc"},
        {"algorithm": {"name": "fedema", "divergence": "global"}},
        {"topology": "isolated"},
        {"topology": "centralized"},
        {"topology": "ring"},
        {"probe__baselines": ["random", "isolated"]},
        {"privacy": {"clip": 1.0, "noise": 1.0, "delta": 0.2}},
    ],
)
def test_combinations_without_a_guarantee(changes: dict[str, Any]) -> None:
    with raises(ConfigError):
        default_experiment(**{**PRIVATE, **changes}).check()


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": {"name": "fedavg", "aggregate": "both"}},
        {"algorithm": {"name": "fedema", "divergence": "global", "lam": 1.0}},
        {"algorithm": {"name": "fedbn", "eval_norm": "mean"}},
        {"algorithm": "fedbn", "method__norm": "batch"},
        {"method": {"name": "mae", "backbone": "vit_mini"}},
        {"topology": {"name": "star", "participation": 0.4}},
    ],
)
def test_combinations_with_one(changes: dict[str, Any]) -> None:
    default_experiment(**{**PRIVATE, **changes}).check()


@pytest.mark.parametrize("name", METHODS.names())
def test_with_group_norm_no_method_uploads_statistics(name: str) -> None:
    """The check looks at the upload's layout; no method of the package has other buffers there."""
    settings: dict[str, Any] = {"name": name, "norm": "group"}
    if METHODS[name].classifies:
        settings["classes"] = 10
    if not needs_patches(name):
        settings["backbone"] = "cnn"
    values = {"clients": 5, "data": "fashion-mini", "method": settings}
    Experiment.from_dict({**values, "privacy": PRIVATE["privacy"]}).check()


def test_the_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedssl.engine.privacy import accountant

    monkeypatch.setattr(accountant, "find_spec", lambda name: None)
    assert privacy_check.need_accountant is accountant.need_accountant
    with raises(ConfigError):
        default_experiment(**PRIVATE).check()
