"""Which cells of published tables some runs are, and how they compare."""

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
from fedssl.tables.plan import PROBE_DEFAULTS
from fedssl.tables.published import Cell, tables


class Run(Protocol):
    @property
    def experiment(self) -> Mapping[str, Any]: ...
    @property
    def settings(self) -> Mapping[str, str]: ...
    @property
    def accuracies(self) -> Mapping[str, float]: ...


def beside(runs: Iterable[Run]) -> Iterator[list[str]]:
    """A row for each figure of a paper that some runs have measured, with its budget or with one local epoch a round.
    A figure that several tables of a paper have is shown once."""
    alike: dict[str, list[Run]] = {}
    for run in runs:
        alike.setdefault(identity(Experiment.from_dict(dict(run.experiment))), []).append(run)
    cells: dict[tuple[str, str, float, str], list[Cell]] = {}
    for table in tables().values():
        for cell in table.cells:
            for suffix in (
                ("", "-short") if cell.probe == "linear" and cell.value is not None else ()
            ):
                key = identity(_of(cell, suffix))
                if key in alike:
                    cells.setdefault((key, table.paper, cell.value or 0.0, suffix), []).append(cell)
    return (
        _row(paper, same, alike[key], bool(suffix))
        for (key, paper, _, suffix), same in cells.items()
    )


def identity(experiment: Experiment) -> str:
    """The same for runs that differ by their seed, by what a device decides, by what is measured on the way, or by
    whether a data set's file is named or the data set."""
    said = named(experiment.to_dict())
    said |= {"seed": None, "probe": {key: said["probe"][key] for key in PROBE_DEFAULTS}}
    said["train"] |= {"precision": None, "checkpoint_every": None}
    return json.dumps(said, sort_keys=True)


def named(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """With the data set's name in place of its file's: in results/ cifar10.npz has the images of cifar10."""
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
    mean, spread = (
        statistics.mean(figures),
        f" ± {statistics.stdev(figures):.2f}" if len(figures) > 1 else "",
    )
    said = max(
        cells, key=lambda cell: len(cell.published or "")
    )  # one of them may have its deviation
    return [
        f"{paper}, {', '.join(dict.fromkeys(cell.place for cell in cells))}",
        said.row,
        said.column,
        runs[0].settings["length"] + (f" (there {_of(said, '').train.epochs})" if shorter else ""),
        str(len(runs)),
        said.published or "",
        f"{mean:.2f}{spread}",
        "" if shorter else f"{mean - (said.value or 0):+.2f}",
    ]
