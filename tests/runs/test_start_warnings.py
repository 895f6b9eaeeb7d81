"""Warnings of an experiment when it starts."""

from __future__ import annotations

from typing import Any

import pytest
from factories import make_experiment

from fedssl.runs.start_warnings import warn


def warnings_of(**settings: Any) -> list[str]:
    printed: list[str] = []
    warn(make_experiment({"clients": 5, **settings}), printed.append)
    return printed


def test_a_plain_experiment_has_none() -> None:
    assert warnings_of() == []
    assert warnings_of(mean="median") == []


@pytest.mark.parametrize("algorithm", ["fedca", "ccl"])
def test_a_robust_mean_does_not_protect_shared_features(algorithm: str) -> None:
    moco = {"name": "mocov2", "backbone": "cnn"}
    plain = warnings_of(algorithm=algorithm, method=moco)
    (shared, unprotected) = warnings_of(algorithm=algorithm, method=moco, mean="median")
    assert plain == [shared]
    assert unprotected.startswith('warning: mean "median" protects the averaged models only')


def test_clients_that_train_alone_share_nothing() -> None:
    alone = {"name": "isolated"}
    assert warnings_of(algorithm="ccl", method={"name": "mocov2"}, topology=alone) == []
