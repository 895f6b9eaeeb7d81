"""What is known of a table: each cell's figures, seed by seed, as far as they are on disk, and what went wrong."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedssl.provenance import code
from fedssl.reproduce import found
from fedssl.reproduce.caveat import INCOMPARABLE, caveat
from fedssl.reproduce.plan import Training, Want
from fedssl.score import rounded
from fedssl.store import write_atomic
from fedssl.tables import LOGGED, Cell, Table


@dataclass(frozen=True)
class Seed:
    """One training and its measurement. No value: not done, impossible, or nothing to be measured (`done`)."""

    seed: int
    value: float | None
    done: bool
    problem: str | None
    dir: str | None
    command: str | None
    note: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    codes: tuple[str, ...] = ()  # that trained and measured: one, unless it changed in between


@dataclass(frozen=True)
class Result:
    """One cell."""

    cell: Cell
    seeds: tuple[Seed, ...]

    @property
    def values(self) -> list[float]:
        return [each.value for each in self.seeds if each.value is not None]

    @property
    def mean(self) -> float | None:
        """Over seeds; None where one of them has nothing to show, such as a target it never reaches: a mean over the
        others would flatter."""
        return self._kept(statistics.fmean(self.values)) if self.values and not self.lacking else None

    @property
    def std(self) -> float | None:
        """Over seeds; None for fewer than two."""
        return self._kept(statistics.stdev(self.values)) if len(self.values) > 1 and not self.lacking else None

    @property
    def lacking(self) -> int:
        """Seeds that were measured and have no value."""
        return sum(each.done and each.value is None for each in self.seeds)

    @property
    def difference(self) -> float | None:
        """Measured less published."""
        return None if self.mean is None or self.cell.value is None else self._kept(self.mean - self.cell.value)

    def _kept(self, value: float) -> float:
        """An accuracy as every percentage is kept; what is read off the log, such as a divergence, may be tiny."""
        return value if self.cell.probe in LOGGED else rounded(value)

    @property
    def problem(self) -> str | None:
        return next((each.problem for each in self.seeds if each.problem is not None), None)

    @property
    def state(self) -> str:
        """ "done", "failed", "cannot" or "missing"."""
        if self.cell.cannot is not None:
            return "cannot"
        if self.problem is not None:
            return "failed"
        return "done" if all(each.done for each in self.seeds) else "missing"

    def to_dict(self, comparable: bool) -> dict[str, Any]:
        cell = self.cell
        return {
            "row": cell.row,
            "column": cell.column,
            "recipe": cell.recipe,
            "set": list(cell.set),
            "probe": cell.probe,
            "probe_settings": list(cell.settings),
            "on": cell.on,
            "published": cell.published,
            "mean": self.mean,
            "std": self.std,
            "n": len(self.values),
            "difference": self.difference if comparable else None,
            "state": self.state,
            "problem": cell.cannot or self.problem,
            "seeds": [vars(each) | {"environment": dict(each.environment)} for each in self.seeds],
        }


class Outcome:
    """A table as it stands. Plain values in `rows`; `to_dict` is what the JSON file has."""

    def __init__(
        self, table: Table, scale: str, wants: Sequence[Want], seeds: int, asked: Iterable[Cell], where: Where
    ) -> None:
        """`wants` may be of more seeds than the `seeds` that were asked for: those that lie on disk count too."""
        self.table, self.scale, self.where, self.seeds = table, scale, where, seeds
        self._wants, self._asked = list(wants), set(asked)
        self.problems: dict[tuple[Training, str], str] = {}
        self._known: dict[tuple[Training, str], Seed] = {}

    @property
    def wanted(self) -> list[Want]:
        """What was asked for this time."""
        return [want for want in self._wants if want.cell in self._asked and want.seed < self.seeds]

    @property
    def results(self) -> list[Result]:
        """All cells of the table, those not asked for this time included, in its order."""
        seeds: dict[Cell, list[Seed]] = {}
        for want in self._wants:
            seed = self._seed(want)
            if want.seed < self.seeds or seed.done:
                seeds.setdefault(want.cell, []).append(seed)
        return [Result(cell, tuple(some)) for cell, some in seeds.items()]

    @property
    def asked(self) -> list[Result]:
        """Those asked for this time."""
        return [each for each in self.results if each.cell in self._asked]

    @property
    def shown(self) -> list[Result]:
        """Those to show a person: asked for this time, or measured before."""
        return [each for each in self.results if each.cell in self._asked or each.state == "done"]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [result.to_dict(self.comparable) for result in self.results]

    @property
    def failed(self) -> list[Result]:
        """Cells that were asked for and did not come about; those that nobody can reproduce here do not count."""
        return [each for each in self.asked if each.state in ("failed", "missing")]

    @property
    def title(self) -> str:
        """Paper, place and title; says if figures are not comparable with the published ones."""
        paper = f"{self.table.paper}, " if self.table.paper else ""
        return f"{paper}{self.table.place}: {self.table.title}{self._caveat}"

    @cached_property
    def _caveat(self) -> str:
        trainings = dict.fromkeys(want.training for want in self._wants if want.training is not None)
        return caveat(self.scale, [each.experiment.to_dict() for each in trainings])

    @property
    def comparable(self) -> bool:
        return not INCOMPARABLE[self.scale]

    @property
    def json_file(self) -> Path:
        scale = f"-{self.scale}" if self.table.paper else ""  # a sweep has but one
        return self.where.root / f"{self.table.name}{scale}.json"

    @property
    def markdown_file(self) -> Path:
        return self.json_file.with_suffix(".md")

    def to_dict(self) -> dict[str, Any]:
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
        self.where.root.mkdir(parents=True, exist_ok=True)
        write_atomic(self.json_file, (json.dumps(self.to_dict(), indent=2) + "\n").encode())
        write_atomic(self.markdown_file, markdown.encode())

    def _seed(self, want: Want) -> Seed:
        if want.training is None or want.measure is None:
            return Seed(want.seed, None, False, want.problem, None, None)
        at = want.training, want.measure.file
        if at in self._known:
            return self._known[at]
        made, run = found.measured(want.training, want.measure), found.results(want.training.folder, want.training.key)
        command = want.training.command(want.measure, self.where.device, self.where.data_dir)
        problem = want.problem or (self.problems.get(at) if made is None else None)
        seed = Seed(
            want.seed,
            None if made is None else found.value(made),
            made is not None,
            problem,
            str(want.training.folder),
            command,
            None if made is None else made.get("note"),
            {} if run is None else run["environment"],
            () if made is None else tuple(sorted({*found.trained_by(want.training), found.made_by(made)})),
        )
        if made is not None:
            self._known[at] = seed
        return seed


@dataclass(frozen=True)
class Where:
    """Where trainings lie and run."""

    root: Path
    data_dir: Path
    device: str
