"""Refusals in one sentence that names the key; registries that find classes of other packages."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
from error_messages import raises
from pydantic import Field, ValidationError, model_validator

from fedssl.core import settings
from fedssl.core.errors import ConfigError
from fedssl.core.settings import Registry, Settings, validate
from fedssl.core.suggestions import suggest


class Inner(Settings):
    width: int = Field(3, gt=0)
    strength: float = 0.5


class Outer(Settings):
    inner: Inner = Inner()
    rounds: int = 1
    first: int = 0

    @model_validator(mode="after")
    def _first_comes_first(self) -> Self:
        if self.first > self.rounds:
            raise ValueError("first must not be beyond rounds")
        return self


class Needy(Settings):
    path: str


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("rouds", ', did you mean "rounds"?'),
        ("ROUNDS!", ""),
        ("moons", ""),
        ("momentun", ', did you mean "momentum"?'),
        ("", ""),
    ],
)
def test_suggest(word: str, expected: str) -> None:
    assert suggest(word, ["rounds", "momentum"]) == expected


@pytest.mark.parametrize(
    ("values", "where", "sentence"),
    [
        ({"rouns": 3}, "", 'unknown key "rouns", did you mean "rounds"?'),
        ({"rouns": 3}, "train", 'unknown key "train.rouns", did you mean "train.rounds"?'),
        ({"zzz": 3}, "train", 'unknown key "train.zzz"; known: inner, rounds, first'),
        ({"inner": {"widht": 3}}, "", 'unknown key "inner.widht", did you mean "inner.width"?'),
        (
            {"inner": {"widht": 3}},
            "method",
            'unknown key "method.inner.widht", did you mean "method.inner.width"?',
        ),
        ({"inner": {"zzz": 3}}, "", 'unknown key "inner.zzz"; known: width, strength'),
        ({"inner": {"width": 0}}, "a", "a.inner.width: input should be greater than 0 (got 0)"),
        (
            {"inner": {"strength": float("nan")}},
            "",
            "inner.strength: input should be a finite number (got nan)",
        ),
        (
            {"inner": 3},
            "",
            "inner: input should be a valid dictionary or instance of Inner (got 3)",
        ),
        ({"first": 2}, "train", "train: first must not be beyond rounds"),
        ({"first": 2}, "", "first must not be beyond rounds"),
    ],
)
def test_one_sentence_names_the_key(values: dict[str, Any], where: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        validate(Outer, values, where)
    assert str(refusal.value) == sentence


def test_a_missing_key_is_named() -> None:
    with raises(ConfigError):
        validate(Needy, {}, "data")


def test_settings_are_frozen_values() -> None:
    a = Outer(rounds=3)
    b = validate(Outer, {"rounds": 3})
    assert a == b
    assert hash(a) == hash(b)
    assert a != Outer()
    with pytest.raises(ValidationError):
        a.rounds = 4  # type: ignore[misc]


class Fruit: ...


class Apple(Fruit): ...


class Pear(Fruit): ...


def _registry() -> Registry[Fruit]:
    registry: Registry[Fruit] = Registry("fruit", "fedssl.fruits")
    registry.register("apple")(Apple)
    return registry


def test_a_registry_by_name_and_back() -> None:
    registry = _registry()
    assert registry["apple"] is Apple
    assert registry.name_of(Apple) == "apple"
    assert registry.names() == ["apple"]


def test_a_registry_lists_its_names_without_loading_plugins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The plugin's module does not exist, so that loading it would raise."""
    plugin = EntryPoint("pear", "no_such_module:Pear", "fedssl.fruits")
    monkeypatch.setattr(settings, "entry_points", lambda group: EntryPoints([plugin]))
    registry = _registry()
    assert list(registry) == ["apple", "pear"]
    assert len(registry) == 2
    assert "pear" in registry
    assert "plum" not in registry
    assert 1 not in registry


@pytest.mark.parametrize(
    "lookup",
    [
        "from fedssl.method import METHODS; METHODS['simclr']",
        "from fedssl.algorithm import ALGORITHMS; ALGORITHMS['fedema']",
        "from fedssl.topologies.topology import TOPOLOGIES; TOPOLOGIES['cycle']",
    ],
)
def test_a_registry_imports_the_modules_of_its_classes(lookup: str) -> None:
    subprocess.run([sys.executable, "-c", lookup], check=True)


def test_unknown_names_get_the_nearest() -> None:
    with raises(ConfigError):
        _registry()["aple"]
    known = r"known: apple, and yours once their module is imported \(--import FILE\) or installed as a plugin"
    with pytest.raises(ConfigError, match=rf'^unknown fruit "zzz"; {known}$'):
        _registry()["zzz"]


def test_a_name_means_one_class() -> None:
    registry = _registry()
    registry.register("apple")(Apple)
    with raises(ConfigError):
        registry.register("apple")(Pear)


def test_a_class_that_is_defined_again_replaces_the_first() -> None:
    """As if a cell of a notebook were executed twice."""
    registry = _registry()
    again = type("Apple", (Fruit,), {"__module__": Apple.__module__})
    registry.register("apple")(again)
    assert registry["apple"] is again


def test_a_users_class_cannot_take_a_name_of_the_package() -> None:
    """Also if the modules of the package are not imported yet."""
    script = (
        "from fedssl.algorithm import ALGORITHMS\n"
        "ALGORITHMS.register('fedavg')(type('Mine', (), {}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (
        'algorithm "fedavg" is registered twice, by fedssl.algorithms.fedavg.FedAvg and by '
        "__main__.Mine: choose another name"
    ) in done.stderr


def test_entry_points_of_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are listed without being imported, loaded on lookup, and registered from then on."""
    points = EntryPoints(
        [
            EntryPoint("pear", f"{__name__}:Pear", "fedssl.fruits"),
            EntryPoint("plum", "no_such:Plum", "fedssl.fruits"),
        ]
    )
    monkeypatch.setattr(settings, "entry_points", lambda **which: points.select(**which))
    registry = _registry()
    assert registry.names() == ["apple", "pear", "plum"]
    assert registry["pear"] is Pear
    assert registry.name_of(Pear) == "pear"
    with raises(ConfigError):
        registry["pera"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("no_such:Plum", "ModuleNotFoundError: No module named 'no_such'"),
        (f"{__name__}:Rotten", "AttributeError: .*Rotten"),
        ("rotten:Plum", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_plugin_that_cannot_be_loaded_is_named(
    value: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rotten.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    points = EntryPoints([EntryPoint("plum", value, "fedssl.fruits")])
    monkeypatch.setattr(settings, "entry_points", lambda **which: points.select(**which))
    with pytest.raises(
        ConfigError, match=f'^fruit "plum" is a plugin, but {value} cannot be loaded: {reason}'
    ):
        _registry()["plum"]


class Renamed(Settings):
    """A setting that was called `old_name` in an earlier version."""

    earlier_names: ClassVar = {"new_name": "old_name"}

    new_name: int = 1


def test_the_earlier_name_of_a_setting_is_accepted() -> None:
    assert validate(Renamed, {"old_name": 5}) == validate(Renamed, {"new_name": 5})
    assert validate(Renamed, {}).new_name == 1


def test_a_change_under_either_name_applies() -> None:
    """A change comes after the values of a file or a recipe."""
    assert validate(Renamed, {"old_name": 5, "new_name": 6}).new_name == 6
    assert validate(Renamed, {"new_name": 5, "old_name": 6}).new_name == 6
