"""The main tables of the papers: published figures, those of runs in results/, and a verdict."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markdown_table import table
from stored_runs import Run, length

from fedssl.experiment.experiment import Experiment
from fedssl.experiment.lookup import load_values
from fedssl.experiment.overrides import merge_changes
from fedssl.experiment.plain_values import parse_assignment
from fedssl.paper_tables.plan import PROBE_DEFAULTS, image_passes
from fedssl.paper_tables.published import Cell, Table, tables

MAIN_TABLES = (
    "fedema-1",
    "fedema-3",
    "fedema-6",
    "fedu-1",
    "fedu-4",
    "fedca-1",
    "ccl-1",
    "decssl-2",
)
TOLERANCE = 1.0  # points by which a reproduced figure may differ from the published one
HEADING = (
    "",
    "",
    "budget",
    "seeds",
    "date",
    "published",
    "measured",
    "L-BFGS",
    "EasyFL",
    "difference",
    "verdict",
)


# Tables whose runs here have another backbone than the paper's.
BACKBONES = {"fedu-4": "resnet18"}


class Measured(NamedTuple):
    """The runs of one cell, and whether they are smaller than the paper's."""

    runs: Sequence[Run]
    smaller: bool


class StoredRuns:
    """Runs by their settings: by all of them, and by all except the length of training."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self._equal: dict[str, list[Run]] = {}
        self._shorter: dict[str, list[Run]] = {}
        for run in runs:
            experiment = Experiment.from_dict(dict(run.experiment))
            self._equal.setdefault(identity(experiment), []).append(run)
            self._shorter.setdefault(identity(experiment, with_length=False), []).append(run)

    def of(self, cell: Cell, backbone: str | None) -> Measured | None:
        """Return the runs of a cell: those of the paper's length, else the longest others.

        With `backbone`, these runs have this one instead of the paper's.
        """
        experiment = _experiment(cell)
        if backbone is None:
            equal = _with_probe(self._equal.get(identity(experiment), []), cell)
            if equal:
                return Measured(equal, smaller=False)
        else:
            experiment = experiment.with_changes({"method.backbone": backbone})
        others = self._shorter.get(identity(experiment, with_length=False), [])
        smaller = _with_probe(others, cell)
        if not smaller:
            return None
        longest = max(_epochs(run.experiment) for run in smaller)
        return Measured([run for run in smaller if _epochs(run.experiment) == longest], True)


def board(runs: Iterable[Run]) -> Iterator[str]:
    """Yield a heading and a table of Markdown for each of the main tables."""
    stored = StoredRuns(runs)
    for name in MAIN_TABLES:
        published = tables()[name]
        yield f"### {published.paper}, {published.place}: {published.title}\n"
        yield table(HEADING, _rows(published, stored, BACKBONES.get(name)))


def _rows(published: Table, stored: StoredRuns, backbone: str | None) -> Iterator[list[str]]:
    """Yield a row for each cell that was run, and one for the other cells of a paper's row."""
    by_row: dict[str, list[Cell]] = {}
    for cell in published.cells:
        by_row.setdefault(cell.row, []).append(cell)
    for name, cells in by_row.items():
        not_run = []
        for cell in cells:
            measured = stored.of(cell, backbone)
            if measured is None:
                not_run.append(cell)
            else:
                yield _measured_row(cell, measured)
        if not_run:
            yield _row_not_run(name, not_run)


def _with_probe(runs: Iterable[Run], cell: Cell) -> list[Run]:
    """Return the runs that the cell's probe measured."""
    return [run for run in runs if cell.probe in run.accuracies]


def _epochs(experiment: Mapping[str, Any]) -> int:
    """Return the number of local epochs in all rounds."""
    return int(experiment["rounds"] * experiment["train"]["epochs"])


def _measured_row(cell: Cell, measured: Measured) -> list[str]:
    runs = measured.runs
    figures = [run.accuracies[cell.probe] for run in runs]
    minima = [run.lbfgs for run in runs if run.lbfgs is not None]
    by_authors = [run.easyfl for run in runs if run.easyfl is not None]
    difference = statistics.mean(figures) - (cell.value or 0)
    budget = runs[0].settings["length"]
    shown = f"{difference:+.2f}"
    verdict = _verdict(difference, cell)
    if _public_name(runs[0].experiment) != _public_name(_experiment(cell).to_dict()):
        budget += ", public images held out of the training images"
    if measured.smaller:
        budget += f" (paper: {_paper_budget(cell, runs[0])})"
        shown = ""
        verdict = f"not run with the paper's budget ({_cost([cell])})"
    return [
        cell.row,
        cell.column,
        budget,
        str(len(runs)),
        max(run.date for run in runs),
        cell.published or "not published",
        _mean_and_spread(figures),
        _mean_and_spread(minima),
        _mean_and_spread(by_authors),
        shown,
        verdict,
    ]


def _paper_budget(cell: Cell, run: Run) -> str:
    """Return the length of a cell's training, and its backbone if the run has another."""
    values = _experiment(cell).to_dict()
    budget = length(values)
    backbone = values["method"]["backbone"]
    if backbone != run.experiment["method"]["backbone"]:
        budget += f", {backbone}"
    return budget


def _row_not_run(name: str, cells: Sequence[Cell]) -> list[str]:
    """Return one row for several cells, with their columns next to the published figures."""
    verdict = f"not run ({_cost(cells)})"
    column = cells[0].column
    figures = cells[0].published or "not published"
    if len(cells) > 1:
        column = f"{len(cells)} figures"
        figures = "; ".join(f"{cell.column}: {cell.published or 'not published'}" for cell in cells)
    return [name, column, "", "", "", figures, "", "", "", "", verdict]


def _verdict(difference: float, cell: Cell) -> str:
    """Compare a difference with the tolerance, or with the published spread if that is larger."""
    spread = float((cell.published or "").partition("±")[2] or 0)
    if abs(difference) <= max(TOLERANCE, spread):
        return "**reproduced**"
    return "**better**" if difference > 0 else "**worse**"


def _mean_and_spread(figures: Sequence[float]) -> str:
    """Return the mean of the seeds and their standard deviation, if there are several."""
    if not figures:
        return ""
    mean = f"{statistics.mean(figures):.2f}"
    if len(figures) == 1:
        return mean
    return f"{mean} ± {statistics.stdev(figures):.2f}"


def _cost(cells: Sequence[Cell]) -> str:
    """Return how many images one seed of these cells trains on, in millions."""
    passes = [image_passes(_experiment(cell).to_dict()) for cell in cells]
    known = [images for images in passes if images is not None]
    if not known:
        return "size of the data set unknown"
    return f"{sum(known) / 1e6:,.0f}M images"


def identity(experiment: Experiment, *, with_length: bool = True) -> str:
    """Return a key that is equal for runs of one cell; without `with_length`, also of shorter ones.

    Such runs may differ in the seed, in settings that depend on the device, in measurements during
    training, in whether they refer to a data set by name or by file, in which images are public,
    and in the guard, which dropped no client of the runs in results/ (tests/test_results_page.py).
    """
    values = named(experiment.to_dict())
    if values.get("public"):
        values["public"] = {"images": values["public"]["images"]}
    values |= {
        "seed": None,
        "guard": None,
        "probe": {key: values["probe"].get(key) for key in PROBE_DEFAULTS},
    }
    values["train"] |= {"precision": None, "checkpoint_every": None}
    if not with_length:
        values["rounds"] = None
        values["train"]["epochs"] = None
    return json.dumps(values, sort_keys=True)


def named(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the file of a data set by its name: cifar10.npz in results/ is cifar10."""
    data = dict(experiment["data"])
    data["name"] = Path(data.pop("path", data["name"])).stem
    return {**experiment, "data": data}


def _public_name(experiment: Mapping[str, Any]) -> str | None:
    """Return the data set of the public images, if the algorithm needs some."""
    return (experiment.get("public") or {}).get("name")


def _experiment(cell: Cell) -> Experiment:
    probe = {
        f"probe.{key.removeprefix('probe.')}": value
        for key, value in map(parse_assignment, cell.settings)
    }
    changes = probe | dict(map(parse_assignment, cell.set))
    return Experiment.from_dict(merge_changes(load_values(cell.recipe), changes))
