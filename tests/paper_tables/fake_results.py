"""Tables of two or three cells, with results that were never trained."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fedssl.core.provenance import code
from fedssl.paper_tables import results_on_disk
from fedssl.paper_tables.plan import SeedPlan, plan_seeds
from fedssl.paper_tables.published import Cell, Table
from fedssl.paper_tables.reproduce import SCALES
from fedssl.paper_tables.sweep import sweep_table
from fedssl.paper_tables.table_results import Outcome, Workspace

GOOD = Cell("A", "x", "fedbyol-cifar10-noniid", "linear", published="79.44±0.99")
BAD = Cell("A", "y", "fedbyol-cifar10-iid", "linear", published="84.29")
PRIVATE = Cell("B", "x", "decssl-simclr-amazon-natural", "linear", cannot="the images are private")


def make_outcome(
    root: Path, *cells: Cell, seeds: int = 3, scale: str = "paper", requested: Sequence[Cell] = ()
) -> Outcome:
    """Return a table of these cells; without `requested`, all of them are requested."""
    table = Table("p-1", "P", "Table 1", "t", cells, "n")
    planned = list(
        plan_seeds(cells, SCALES.get(scale, ""), range(seeds), root, torch.device("cpu"))
    )
    return Outcome(
        table, scale, planned, seeds, requested or cells, Workspace(root, Path("data"), "cpu")
    )


def make_sweep(root: Path, *assignments: str, probes: tuple[str, ...]) -> Outcome:
    """Return the outcome of a sweep of the demo with one seed."""
    table = sweep_table("demo", assignments, probes)
    plans = list(plan_seeds(table.cells, "", range(1), root, torch.device("cpu")))
    workspace = Workspace(root, Path("data"), "cpu")
    return Outcome(table, "as it is", plans, 1, table.cells, workspace)


def fake_result(
    plan: SeedPlan,
    value: float | None,
    version: str = "1",
    trained: str = "",
    measured: str = "",
    **more: Any,
) -> None:
    """Write the files of a finished training and its measurement.

    By default the current code made them; `more` are further values of the measurement.
    """
    training = plan.training
    measure = plan.measure
    assert training is not None
    assert measure is not None
    (training.folder / "measures").mkdir(parents=True, exist_ok=True)
    results = {
        "experiment": training.key,
        "environment": {"fedssl": version, "code": trained or code(), "device": "cpu"},
    }
    (training.folder / "results.json").write_text(json.dumps(results))
    measurement = {"experiment": training.key, "code": measured or code(), "value": value, **more}
    results_on_disk.write_measurement(training.folder, measure.file, measurement)
