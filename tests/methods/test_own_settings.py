"""A method that extends another is built as itself, with or without its own settings class."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fedssl.experiment.experiment import Experiment
from fedssl.method import METHODS
from fedssl.methods.simclr import SimCLR


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    yield
    for name in ("plain-child", "sharing-child"):
        METHODS._classes.pop(name, None)


def test_a_method_that_extends_another_is_the_one_that_runs() -> None:
    @METHODS.register("plain-child")
    class Plain(SimCLR):
        pass

    @METHODS.register("sharing-child")
    class Sharing(SimCLR):
        Settings = SimCLR.Settings

    for name, expected in (("plain-child", Plain), ("sharing-child", Sharing), ("simclr", SimCLR)):
        values = {
            "clients": 2,
            "data": {"name": "fashion-mini"},
            "method": {"name": name, "hidden": 7},
        }
        experiment = Experiment.from_dict(values)
        assert experiment.method.method is expected
        assert experiment.to_dict()["method"]["name"] == name
        assert experiment.to_dict()["method"]["hidden"] == 7
