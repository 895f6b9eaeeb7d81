"""Changes of settings: assignments, other names, and merged tables."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from error_messages import raises
from factories import REQUIRED_SETTINGS, default_experiment

from fedssl.core.errors import ConfigError
from fedssl.experiment.experiment import load
from fedssl.experiment.overrides import merge_changes
from fedssl.experiment.plain_values import parse_assignment
from fedssl.method import METHODS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rounds=3", ("rounds", 3)),
        (" train.lr = 1e-3 ", ("train.lr", 1e-3)),
        ("algorithm.update=both", ("algorithm.update", "both")),
        ('method.name="byol"', ("method.name", "byol")),
        ("probe.linear=false", ("probe.linear", False)),
        ("method.augment.crop=[0.5, 1.0]", ("method.augment.crop", [0.5, 1.0])),
        ("data.path=/some/where=else", ("data.path", "/some/where=else")),
        ("data.path=", ("data.path", None)),
    ],
)
def test_assignments(text: str, expected: tuple[str, Any]) -> None:
    assert parse_assignment(text) == expected


@pytest.mark.parametrize("text", ["rounds", "=3", "", "  =x"])
def test_invalid_assignments_are_refused(text: str) -> None:
    with raises(ConfigError):
        parse_assignment(text)


@pytest.mark.parametrize("change", ["data.test=", "data.test=none"])
def test_an_empty_value_or_none_removes_an_optional_setting(change: str) -> None:
    key, value = parse_assignment(change)
    for table in ({"name": "folder", "test": "labelled"}, {"name": "folder"}):
        assert merge_changes({"data": table}, {key: value}) == {"data": {"name": "folder"}}


def test_none_is_a_value_of_settings_that_are_not_optional() -> None:
    key, value = parse_assignment("data.path=none")
    assert merge_changes({"data": {"name": "folder"}}, {key: value})["data"]["path"] == "none"


def test_none_removes_a_setting_of_a_table_without_a_name() -> None:
    assert load("demo", ["probe.k=5"]).probe.k == 5
    assert load("demo", ["probe.k=none"]).probe.k is None
    assert load("demo", ["rounds="]).rounds == 100  # not the recipe's 40


def test_another_name_keeps_the_keys_of_both_choices() -> None:
    values = merge_changes(
        REQUIRED_SETTINGS, {"method.dim": 64, "method.momentum": 0.5, "method.hidden": 32}
    )
    changed = merge_changes(values, {"method.name": "simclr"})
    assert changed["method"] == {"name": "simclr", "backbone": "cnn", "dim": 64, "hidden": 32}
    assert values["method"]["momentum"] == 0.5  # the argument is not changed


def test_another_name_has_its_own_defaults() -> None:
    """SimCLR's temperature is 0.07 by default and MoCo v2's 0.2; chosen values stay."""
    simclr = default_experiment(method__name="simclr", method__dim=64)
    assert simclr.to_dict()["method"]["temperature"] == 0.07
    moco = simclr.with_changes({"method.name": "mocov2"}).to_dict()["method"]
    assert (moco["temperature"], moco["dim"], moco["backbone"]) == (0.2, 64, "cnn")
    warm = (
        simclr.with_changes({"method.temperature": 0.5})
        .with_changes({"method": "mocov2"})
        .to_dict()["method"]
    )
    assert (warm["temperature"], warm["dim"]) == (0.5, 64)
    weak = default_experiment(method__name="mocov1").with_changes({"method.name": "mocov2"})
    assert weak == default_experiment(
        method__name="mocov2"
    )  # tables of defaults, such as the jitter, go too
    back = simclr.with_changes({"method.name": "mocov2"}).with_changes({"method.name": "simclr"})
    assert back == simclr


def test_a_name_is_changed_before_its_keys() -> None:
    changed = default_experiment().with_changes(
        {"method.temperature": 0.5, "method.name": "simclr"}
    )
    assert METHODS.name_of(changed.method.method) == "simclr"
    assert changed.method.temperature == 0.5  # type: ignore[attr-defined]


def test_any_topology_can_be_compared_with_a_sampled_star() -> None:
    star = default_experiment(topology__name="star", topology__participation=0.2)
    for name in ("isolated", "centralized"):
        assert star.with_changes({"topology.name": name}).to_dict()["topology"] == {"name": name}


TABLE = {"dim": 64, "augment": {"flip": 0.25}}


def test_a_table_is_merged_however_it_is_given(tmp_path: Path) -> None:
    """All spellings of a change give the same experiment; other keys keep their values."""
    start = default_experiment(method__hidden=32, method__augment__blur=0.5)
    expected = start.with_changes({"method.dim": 64, "method.augment.flip": 0.25})
    method = expected.to_dict()["method"]
    assert (method["name"], method["hidden"], method["dim"]) == ("byol", 32, 64)
    assert (method["augment"]["blur"], method["augment"]["flip"]) == (0.5, 0.25)
    assert start.with_changes({"method": TABLE}) == expected
    assert start.with_changes({"method.dim": 64, "method.augment": {"flip": 0.25}}) == expected
    file = tmp_path / "start.toml"
    file.write_text(start.to_toml())
    assert load(file, ["method={dim=64, augment={flip=0.25}}"]) == expected
    assert load(file, ["method={dim=64}", "method={augment={flip=0.25}}"]) == expected
    assert load(file, ["method.dim=1", "method={dim=64}", "method.augment.flip=0.25"]) == expected


def test_a_table_with_a_name_chooses_as_the_name_alone_does() -> None:
    start = default_experiment(method__hidden=32, method__momentum=0.5)
    expected = start.with_changes({"method.name": "simclr", "method.dim": 64})
    assert start.with_changes({"method": {"dim": 64, "name": "simclr"}}) == expected
    assert expected.to_dict()["method"]["hidden"] == 32


def test_changes_keep_python_values(tmp_path: Path) -> None:
    assert (
        default_experiment().with_changes({"method.init": tmp_path / "x"}).method.init
        == tmp_path / "x"
    )
    with raises(ConfigError):
        default_experiment().with_changes({"rounds": datetime.date(2020, 1, 1)})
