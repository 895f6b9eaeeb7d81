"""Tables of two or three cells, and trainings that never took place."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fedssl.provenance import code
from fedssl.reproduce import SCALES, found
from fedssl.reproduce.outcome import Outcome, Where
from fedssl.reproduce.plan import Want, wants
from fedssl.tables import Cell, Table

GOOD = Cell("A", "x", "fedbyol-cifar10-noniid", "linear", published="79.44±0.99")
BAD = Cell("A", "y", "fedbyol-cifar10-iid", "linear", published="84.29")
PRIVATE = Cell("B", "x", "decssl-simclr-amazon-natural", "linear", cannot="the images are private")


def outcome(root: Path, *cells: Cell, seeds: int = 3, scale: str = "paper", asked: Sequence[Cell] = ()) -> Outcome:
    table = Table("p-1", "P", "Table 1", "t", cells, "n")
    planned = list(wants(cells, SCALES.get(scale, ""), range(seeds), root, torch.device("cpu")))
    return Outcome(table, scale, planned, seeds, asked or cells, Where(root, Path("data"), "cpu"))


def pretend(
    want: Want, value: float | None, version: str = "1", trained: str = "", measured: str = "", **more: Any
) -> None:
    """As if it had been trained and measured, by the code of today or by some other; `more` was measured besides."""
    training, measure = want.training, want.measure
    assert training is not None
    assert measure is not None
    (training.folder / "measures").mkdir(parents=True, exist_ok=True)
    results = {
        "experiment": training.key,
        "environment": {"fedssl": version, "code": trained or code(), "device": "cpu"},
    }
    (training.folder / "results.json").write_text(json.dumps(results))
    made = {"experiment": training.key, "code": measured or code(), "value": value, **more}
    found.keep(training.folder, measure.file, made)
