"""Tests of fedssl on Flower, where Flower is installed."""

from __future__ import annotations

import importlib
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

INSTALLED = find_spec("flwr") is not None


class Skipped(pytest.Module):
    """A module of tests that cannot be imported here; seen to be skipped."""

    def collect(self) -> Any:
        pytest.skip('needs Flower: in a clone of fedssl, pip install ".[flower]"', allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return None if INSTALLED else Skipped.from_parent(parent, path=module_path)


if INSTALLED:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what it imports: its typer uses what its click has deprecated
        importlib.import_module("flwr.serverapp")
        importlib.import_module("flwr.clientapp")


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A federation without sockets: see fake_grid.py."""
    from fake_grid import Nodes
    from flwr.supercore.task_identity import TaskIdentity

    from fedssl.runtimes.flower import answers, members, server

    for name in ("run_id", "node_id", "task_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)
    for module in (answers, members, server):
        monkeypatch.setattr(module, "POLL", 0.01)
    return Nodes(tmp_path)
