"""The preset "strict" of the guard: by name, in a table, with changes; and what it limits."""

from __future__ import annotations

import pytest
from error_messages import raises
from factories import default_experiment

from fedssl.core.errors import ConfigError
from fedssl.core.settings import validate
from fedssl.engine.uploads.norm_bound import Movement, NormBound, TypicalUpdate
from fedssl.engine.uploads.settings import STRICT, GuardSettings
from fedssl.experiment.experiment import Experiment

STRICT_GUARD = GuardSettings(**STRICT)


def test_a_preset_by_its_name_or_in_a_table() -> None:
    plain = default_experiment()
    assert default_experiment(guard="strict").guard == STRICT_GUARD
    assert plain.with_changes({"guard": {"preset": "strict"}}).guard == STRICT_GUARD
    assert plain.with_changes({"guard.preset": "default"}).guard == GuardSettings()
    loaded = Experiment.from_toml(plain.to_toml().replace("[guard]", '[guard]\npreset = "strict"'))
    # Keys that the file names replace those of the preset; max_share, which has no value, is not
    # there.
    assert loaded.guard == GuardSettings(max_share=STRICT["max_share"])


def test_other_keys_replace_those_of_the_preset() -> None:
    changed = default_experiment(guard="strict", guard__norm_bound=4.0)
    assert changed.guard == STRICT_GUARD.model_copy(update={"norm_bound": 4.0})
    in_toml = (
        'clients = 5\nguard = "strict"\n[data]\nname = "fashion-mini"\n[method]\nname = "byol"'
    )
    assert Experiment.from_toml(in_toml).guard == STRICT_GUARD


def test_the_values_of_a_preset_are_written() -> None:
    written = default_experiment(guard="strict").to_dict()["guard"]
    assert "preset" not in written
    assert written["norm_bound"] == STRICT["norm_bound"]


def test_an_unknown_preset() -> None:
    with raises(ConfigError):
        validate(GuardSettings, {"preset": "stric"}, "guard")


@pytest.mark.parametrize(("guard", "expected"), [(GuardSettings(), 1.5), (STRICT_GUARD, 1.0)])
def test_running_statistics_may_always_move_by_the_floor(
    guard: GuardSettings, expected: float
) -> None:
    """The typical shift is 0.1: several times that is below the floor."""
    typical = TypicalUpdate(1.0, 10, 1.0, shift=0.1)
    bound = NormBound(guard, 1.0, typical)
    assert bound.shift_limit(10) == expected
    assert bound.shift_error(Movement(1.0, 10, expected * 1.01)) is not None


def test_the_strict_norm_is_that_of_the_last_round() -> None:
    """After medians of 4 and 1 the limit is twice the last one, 2; the default would be 10 · 4."""
    first = NormBound(STRICT_GUARD)
    for _ in range(5):
        first = first.with_accepted(Movement(4.0, 10))
    second = NormBound(STRICT_GUARD, 1.0, first.next_typical())
    for _ in range(5):
        second = second.with_accepted(Movement(1.0, 10))
    third = NormBound(STRICT_GUARD, 1.0, second.next_typical())
    assert third.norm_limit(10) == 2.0
