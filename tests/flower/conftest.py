"""Fixtures for the tests of fedssl on Flower; without Flower, the tests are skipped."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

INSTALLED = find_spec("flwr") is not None


class Skipped(pytest.Module):
    """A module of tests that cannot be imported here and is reported as skipped."""

    def collect(self) -> Any:
        pytest.skip(
            'needs Flower: in a clone of fedssl, pip install ".[flower]"', allow_module_level=True
        )


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    if INSTALLED:
        return None
    return Skipped.from_parent(parent, path=module_path)


if INSTALLED:
    with warnings.catch_warnings():
        # Flower's typer uses functions that its click has deprecated.
        warnings.simplefilter("ignore")
        importlib.import_module("flwr.serverapp")
        importlib.import_module("flwr.clientapp")


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A federation without sockets: see fake_grid.py."""
    from fake_grid import Nodes
    from flwr.supercore.task_identity import TaskIdentity

    from fedssl.flower import answers, roster, runtime
    from fedssl.flower.secure_aggregation import phases

    for name in ("run_id", "node_id", "task_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)
    for module in (answers, roster, runtime, phases):
        monkeypatch.setattr(module, "POLL", 0.01)
    return Nodes(tmp_path)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Any]:
    """The processes of a federation on loopback, which end with the test."""
    from fedssl.flower.local_processes import local_processes

    with local_processes(tmp_path / "flower") as running:
        yield running
