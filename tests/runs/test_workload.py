"""What makes a long run shorter."""

from __future__ import annotations

from typing import Any

import torch

from fedssl.experiment.client_data import partition_data
from fedssl.experiment.federation_setup import Federation
from fedssl.runs.time_left import Later
from fedssl.runs.workload import shorter
from tests.factories import bright_dataset, make_experiment

CPU = torch.device("cpu")


def _federation(**changes: Any) -> Federation:
    experiment = make_experiment(**changes)
    seen, owners = partition_data(experiment, bright_dataset(), lambda line: None)
    return Federation.build(experiment, seen, owners, public=None, device=CPU)


def test_a_long_run_comes_with_what_makes_it_shorter() -> None:
    """1,000 s of training and as much for the baselines."""
    federation = _federation(rounds=40)
    assert shorter(federation, 300.0, 300.0, Later(baselines=1.0)) is None
    assert shorter(federation, 1000.0, 1000.0, Later(baselines=1.0)) == (
        "to make it shorter: --set rounds=20 takes about half the time, but trains less; "
        "--no-baselines saves about 17 min"
    )
