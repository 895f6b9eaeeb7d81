"""`fedssl run --estimate`: the time of a run that is not started."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fedssl.runs.time_left import FollowingWork

Cli = Callable[..., tuple[int, str, str]]


def test_an_estimate_creates_no_directory(here: Path, cli: Cli) -> None:
    before = sorted(here.rglob("*"))
    _, out, _ = cli("run", "mine.toml", "--estimate")
    assert out.splitlines()[0] == "run directory: runs/mine"
    assert "mine: training cnn" in out
    assert "estimated time: about" in out
    assert sorted(here.rglob("*")) == before


def test_seeds_take_as_long_as_single_runs(
    here: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run takes 18 s."""
    monkeypatch.setattr("fedssl.runs.time_estimate.training_speed", lambda federation: 4.0)
    monkeypatch.setattr(
        "fedssl.runs.estimate.estimate_run",
        lambda *args: (18.0, FollowingWork()),
    )
    _, out, _ = cli("run", "mine.toml", "--estimate", "--seeds", "3", "--json")
    values = json.loads(out)
    assert values["seconds"] == 54.0
    assert values["lines"][-1] == "3 seeds take 54 s"
