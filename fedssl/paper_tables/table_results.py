"""The current state of a table: the figures of all cells that are on disk, and what failed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedssl.core.console import shortened
from fedssl.core.errors import FedsslError
from fedssl.core.files.atomic import write_atomic
from fedssl.core.provenance import code
from fedssl.paper_tables import results_on_disk
from fedssl.paper_tables.cell_result import CellResult, SeedResult
from fedssl.paper_tables.comparability import INCOMPARABLE, caveat
from fedssl.paper_tables.plan import Measure, SeedPlan, Training
from fedssl.paper_tables.published import Cell, Table

MAX_LISTED = 3  # cells that are listed for each reason


@dataclass(frozen=True)
class Workspace:
    """Where trainings are stored and run."""

    root: Path
    data_dir: Path
    device: str


class Outcome:
    """The results of a table, finished or not: one cell for each row and column.

    `rows` has plain values; `to_dict` is the content of the JSON file. Figures are read from the
    files of the trainings, so results of earlier commands are included.
    """

    def __init__(
        self,
        table: Table,
        scale: str,
        plans: Sequence[SeedPlan],
        seeds: int,
        requested: Iterable[Cell],
        workspace: Workspace,
    ) -> None:
        """`plans` may cover more seeds than the `seeds` requested: results on disk count too."""
        self.table = table
        self.scale = scale
        self.seeds = seeds
        self.workspace = workspace
        self.problems: dict[tuple[Training, str], str] = {}
        self._plans = list(plans)
        self._requested = set(requested)
        self._measured: dict[tuple[Training, str], SeedResult] = {}

    @property
    def requested_seeds(self) -> list[SeedPlan]:
        """The plans of all seeds of the requested cells."""
        return [
            plan for plan in self._plans if plan.cell in self._requested and plan.seed < self.seeds
        ]

    @property
    def results(self) -> list[CellResult]:
        """All cells of the table in its order, also those that were not requested."""
        seeds: dict[Cell, list[SeedResult]] = {}
        for plan in self._plans:
            result = self._seed_result(plan)
            if plan.seed < self.seeds or result.done:
                seeds.setdefault(plan.cell, []).append(result)
        return [CellResult(cell, tuple(results)) for cell, results in seeds.items()]

    @property
    def requested_cells(self) -> list[CellResult]:
        """The cells that were requested."""
        return [result for result in self.results if result.cell in self._requested]

    @property
    def displayed_cells(self) -> list[CellResult]:
        """The cells to display: those requested, and those measured before."""
        displayed = []
        for result in self.results:
            if result.cell in self._requested or result.state == "done":
                displayed.append(result)
        return displayed

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All cells as plain values."""
        return [result.to_dict(self.comparable) for result in self.results]

    @property
    def failed(self) -> list[CellResult]:
        """The requested cells without a result, except those that cannot be reproduced here."""
        return [result for result in self.requested_cells if result.state in ("failed", "missing")]

    @property
    def title(self) -> str:
        """Paper, place and title, with a caveat if figures are not comparable."""
        paper = f"{self.table.paper}, " if self.table.paper else ""
        return f"{paper}{self.table.place}: {self.table.title}{self._caveat}"

    @cached_property
    def _caveat(self) -> str:
        experiments = {}
        for plan in self._plans:
            if plan.training is not None:
                experiments[plan.training] = plan.training.experiment.to_dict()
        return caveat(self.scale, experiments.values())

    @property
    def comparable(self) -> bool:
        """True if figures are comparable with the published ones."""
        return not INCOMPARABLE[self.scale]

    @property
    def json_file(self) -> Path:
        """The JSON file of the table."""
        scale = f"-{self.scale}" if self.table.paper else ""  # a sweep has only one scale
        return self.workspace.root / f"{self.table.name}{scale}.json"

    @property
    def markdown_file(self) -> Path:
        """The Markdown file of the table."""
        return self.json_file.with_suffix(".md")

    @property
    def plot_file(self) -> Path:
        """The plot of a sweep over one numeric setting."""
        return self.json_file.with_suffix(".png")

    def to_dict(self) -> dict[str, Any]:
        """Return the whole table as plain values."""
        table = self.table
        return {
            "table": table.name,
            "paper": table.paper,
            "place": table.place,
            "title": table.title + self._caveat,
            "note": table.note,
            "scale": self.scale,
            "code": code(),
            "comparable": self.comparable,
            "warning": INCOMPARABLE[self.scale] or None,
            "cells": self.rows,
        }

    def save(self, markdown: str) -> None:
        """Write the JSON file, and the Markdown file with the given text."""
        self.workspace.root.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.to_dict(), indent=2) + "\n"
        write_atomic(self.json_file, text.encode())
        write_atomic(self.markdown_file, markdown.encode())

    def _seed_result(self, plan: SeedPlan) -> SeedResult:
        if plan.training is None or plan.measure is None:
            return SeedResult(
                plan.seed, None, done=False, problem=plan.problem, dir=None, command=None
            )
        key = (plan.training, plan.measure.file)
        if key not in self._measured:
            result = self._read_seed(plan, plan.training, plan.measure)
            if not result.done:
                return result
            self._measured[key] = result
        return self._measured[key]

    def _read_seed(self, plan: SeedPlan, training: Training, measure: Measure) -> SeedResult:
        """Return the result of a seed from the files of its training."""
        workspace = self.workspace
        measurement = results_on_disk.find_measurement(training, measure)
        run = results_on_disk.read_results(training.folder, training.key)
        result = SeedResult(
            plan.seed,
            value=None,
            done=False,
            problem=plan.problem or self.problems.get((training, measure.file)),
            dir=str(training.folder),
            command=training.command(measure, workspace.device, workspace.data_dir),
            environment={} if run is None else run["environment"],
        )
        if measurement is None:
            return result
        codes = results_on_disk.training_codes(training)
        codes.add(results_on_disk.measurement_code(measurement))
        return replace(
            result,
            value=results_on_disk.value_of(measurement),
            done=True,
            problem=plan.problem,
            note=measurement.get("note"),
            codes=tuple(sorted(codes)),
        )


class TableError(FedsslError):
    """Some cells failed; all others are finished and saved. `outcome` has the whole table."""

    def __init__(self, outcome: Outcome) -> None:
        failed = outcome.failed
        reasons = []
        for reason, cells in failures(failed).items():
            reasons.append(f"{cells}: {reason}")
        super().__init__(
            f"{len(failed)} of {len(outcome.requested_cells)} cells failed ({'; '.join(reasons)}); "
            f"{outcome.markdown_file} has the reason for every seed"
        )
        self.outcome = outcome


def failures(failed: Iterable[CellResult]) -> dict[str, str]:
    """Return the names of failed cells by reason, each reason on one line."""
    cells: dict[str, list[str]] = {}
    for result in failed:
        reason = " ".join((result.problem or "not run").split())
        cells.setdefault(reason, []).append(f"{result.cell.row}, {result.cell.column}")
    return {reason: "; ".join(shortened(names, MAX_LISTED)) for reason, names in cells.items()}
