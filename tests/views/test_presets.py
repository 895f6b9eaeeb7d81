"""View presets: names that stand for settings of the random operations."""

from __future__ import annotations

import pytest
from error_messages import raises

from fedssl.core.errors import ConfigError
from fedssl.experiment.experiment import Experiment, load
from fedssl.views import Augment
from fedssl.views.presets import PRESETS

VALUES = {"data": "fashion-mini", "clients": 2, "method": {"name": "simclr", "backbone": "cnn"}}


def test_the_preset_of_photos_is_simclrs() -> None:
    assert Augment.model_validate("photo") == Augment()


@pytest.mark.parametrize("name", PRESETS)
def test_a_name_stands_for_its_settings(name: str) -> None:
    augment = Augment.model_validate(name)
    assert augment == Augment(**PRESETS[name])
    assert Augment.model_validate({"preset": name}) == augment


def test_other_settings_are_kept_next_to_a_preset() -> None:
    augment = Augment.model_validate({"preset": "xray", "blur": 0.5})
    assert (augment.flip, augment.blur) == (0.0, 0.5)


def test_an_experiment_shows_the_values_of_a_preset() -> None:
    """Two ways to write the same views are the same experiment."""
    named = Experiment.from_dict({**VALUES, "method": {**VALUES["method"], "augment": "xray"}})
    spelled = Experiment.from_dict(
        {**VALUES, "method": {**VALUES["method"], "augment": dict(PRESETS["xray"])}}
    )
    assert named.hash() == spelled.hash()
    assert "preset" not in named.to_toml()
    assert Experiment.from_toml(named.to_toml()) == named


@pytest.mark.parametrize("change", ["method.augment=xray", "method.augment.preset=xray"])
def test_a_preset_replaces_the_views_of_a_recipe(change: str) -> None:
    """The demo sets its own crop and jitter; a blur that is set next to the preset is kept."""
    augment = load("demo", ["method.augment.blur=0.5", change]).method.augment
    if change.startswith("method.augment="):
        augment = load("demo", [change, "method.augment.blur=0.5"]).method.augment
    assert augment == Augment(**PRESETS["xray"], blur=0.5)


def test_an_unknown_preset_gets_the_nearest() -> None:
    with raises(ConfigError):
        load("demo", ["method.augment=xrays"])
