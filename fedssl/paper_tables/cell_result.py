"""The result of one cell: a figure for each seed, and their mean and standard deviation."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedssl.evaluation.score import rounded
from fedssl.paper_tables.published import LOGGED, Cell


@dataclass(frozen=True)
class SeedResult:
    """One training and its measurement.

    `value` is None if it is not measured yet, if it failed, or if it is measured (`done`) and there
    is no figure, such as a target that is never reached.
    """

    seed: int
    value: float | None
    done: bool
    problem: str | None
    dir: str | None
    command: str | None
    note: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    codes: tuple[str, ...] = ()  # digests of the code that trained and measured


@dataclass(frozen=True)
class CellResult:
    """One cell with the results of its seeds."""

    cell: Cell
    seeds: tuple[SeedResult, ...]

    @property
    def values(self) -> list[float]:
        """The figures of all seeds that have one."""
        return [seed.value for seed in self.seeds if seed.value is not None]

    @property
    def mean(self) -> float | None:
        """The mean over seeds.

        None if a measured seed has no figure, such as a target it never reaches: the mean over the
        other seeds would be too good.
        """
        if not self.values or self.seeds_without_figure:
            return None
        return self._round(statistics.fmean(self.values))

    @property
    def std(self) -> float | None:
        """The standard deviation over seeds; None for fewer than two."""
        if len(self.values) < 2 or self.seeds_without_figure:
            return None
        return self._round(statistics.stdev(self.values))

    @property
    def seeds_without_figure(self) -> int:
        """The number of seeds that are measured and have no figure."""
        return sum(seed.done and seed.value is None for seed in self.seeds)

    @property
    def difference(self) -> float | None:
        """The measured minus the published figure."""
        if self.mean is None or self.cell.value is None:
            return None
        return self._round(self.mean - self.cell.value)

    def _round(self, value: float) -> float:
        """Round an accuracy like every percentage.

        Figures from the log, such as a divergence, may be tiny and are not rounded.
        """
        if self.cell.probe in LOGGED:
            return value
        return rounded(value)

    @property
    def problem(self) -> str | None:
        """The first problem of a seed."""
        for seed in self.seeds:
            if seed.problem is not None:
                return seed.problem
        return None

    @property
    def state(self) -> str:
        """ "done", "failed", "cannot" (be reproduced here) or "missing"."""
        if self.cell.cannot is not None:
            return "cannot"
        if self.problem is not None:
            return "failed"
        if all(seed.done for seed in self.seeds):
            return "done"
        return "missing"

    def to_dict(self, comparable: bool) -> dict[str, Any]:
        """Return plain values; `difference` only if figures are comparable with the published."""
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
            "seeds": [vars(seed) | {"environment": dict(seed.environment)} for seed in self.seeds],
        }
