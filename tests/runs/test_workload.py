"""Advice that makes a long run shorter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fedssl import nets
from fedssl.experiment.client_data import partition_data
from fedssl.experiment.federation_setup import Federation
from fedssl.runs.time_left import FollowingWork
from fedssl.runs.workload import adapter_line, shorter
from tests.factories import bright_dataset, make_experiment

CPU = torch.device("cpu")


def _federation(**changes: Any) -> Federation:
    experiment = make_experiment(**changes)
    seen, owners = partition_data(experiment, bright_dataset(), lambda line: None)
    return Federation.build(experiment, seen, owners, public=None, device=CPU)


def test_a_long_run_comes_with_advice_to_shorten_it() -> None:
    """Training takes 1,000 s, and the baselines as much again."""
    federation = _federation(rounds=40)
    assert shorter(federation, 300.0, 300.0, FollowingWork(baselines=1.0)) is None
    assert shorter(federation, 1000.0, 1000.0, FollowingWork(baselines=1.0)) == (
        "to make it shorter: --set rounds=20 takes about half the time, but trains less; "
        "--no-baselines saves about 17 min"
    )


def test_large_heads_are_named(tmp_path: Path) -> None:
    """Heads of BYOL with hidden = 256 and dim = 128 on 512 features.

    The projector has 512·256 + 256 + 2·256 + 256·128 + 128 weights, 164,736, the predictor 128·256
    + 256 + 2·256 + 256·128 + 128: 66,432. Both have 2·256 statistics and a counter: 928,784 bytes.
    """
    assert adapter_line(_federation().trainer.method, _federation().schema) is None
    init = tmp_path / "init.safetensors"
    nets.save_backbone(nets.build("cnn").state_dict(), init, {})
    method = {"hidden": 256, "dim": 128, "init": str(init), "adapters": {"rank": 8}}
    federation = _federation(method=method)
    line = adapter_line(federation.trainer.method, federation.schema)
    assert line is not None
    assert line.endswith(", of which 0.93 MB are heads: smaller heads shorten it")
