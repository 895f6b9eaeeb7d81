"""Find the cells of published tables that runs reproduce, and compare the figures."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fedssl.experiment.experiment import Experiment
from fedssl.experiment.lookup import load_values
from fedssl.experiment.overrides import merge_changes
from fedssl.experiment.plain_values import parse_assignment
from fedssl.paper_tables.plan import PROBE_DEFAULTS
from fedssl.paper_tables.published import Cell, tables


class Run(Protocol):
    """The properties of a run that a comparison needs."""

    @property
    def experiment(self) -> Mapping[str, Any]: ...
    @property
    def settings(self) -> Mapping[str, str]: ...
    @property
    def accuracies(self) -> Mapping[str, float]: ...


def compare(runs: Iterable[Run]) -> Iterator[list[str]]:
    """Yield a row for each figure of a paper that runs reproduce.

    Runs have the paper's budget or one local epoch per round. A figure that occurs in several
    tables of a paper has one row.
    """
    equal: dict[str, list[Run]] = {}
    for run in runs:
        equal.setdefault(identity(Experiment.from_dict(dict(run.experiment))), []).append(run)
    cells: dict[tuple[str, str, float, str], list[Cell]] = {}
    for table in tables().values():
        for cell in table.cells:
            for suffix in (
                ("", "-short") if cell.probe == "linear" and cell.value is not None else ()
            ):
                key = identity(_of(cell, suffix))
                if key in equal:
                    cells.setdefault((key, table.paper, cell.value or 0.0, suffix), []).append(cell)
    return (
        _row(paper, same, equal[key], bool(suffix))
        for (key, paper, _, suffix), same in cells.items()
    )


def identity(experiment: Experiment) -> str:
    """Return a key that is equal for runs of one cell.

    Such runs may differ in the seed, in settings that depend on the device, in measurements during
    training, in whether they refer to a data set by name or by file, and in the guard, which
    dropped no client of the runs in results/ (tests/test_results_page.py).
    """
    values = named(experiment.to_dict())
    values |= {
        "seed": None,
        "guard": None,
        "probe": {key: values["probe"][key] for key in PROBE_DEFAULTS},
    }
    values["train"] |= {"precision": None, "checkpoint_every": None}
    return json.dumps(values, sort_keys=True)


def named(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the file of a data set by its name: cifar10.npz in results/ is cifar10."""
    data = dict(experiment["data"])
    data["name"] = Path(data.pop("path", data["name"])).stem
    return {**experiment, "data": data}


def _of(cell: Cell, suffix: str) -> Experiment:
    probe = {
        f"probe.{key.removeprefix('probe.')}": value
        for key, value in map(parse_assignment, cell.settings)
    }
    changes = probe | dict(map(parse_assignment, cell.set))
    return Experiment.from_dict(merge_changes(load_values(cell.recipe + suffix), changes))


def _row(paper: str, cells: Sequence[Cell], runs: Sequence[Run], shorter: bool) -> list[str]:
    figures = [run.accuracies["linear"] for run in runs]
    mean = statistics.mean(figures)
    spread = f" ± {statistics.stdev(figures):.2f}" if len(figures) > 1 else ""
    # Only some of the cells may give the standard deviation: use the longest text.
    cell = max(cells, key=lambda cell: len(cell.published or ""))
    length = runs[0].settings["length"]
    if shorter:
        length += f" (paper: {_of(cell, '').train.epochs})"
    return [
        f"{paper}, {', '.join(dict.fromkeys(cell.place for cell in cells))}",
        cell.row,
        cell.column,
        length,
        str(len(runs)),
        cell.published or "",
        f"{mean:.2f}{spread}",
        "" if shorter else f"{mean - (cell.value or 0):+.2f}",
    ]
