"""Published tables, and sweeps of one's own: runs what is missing, and says what was published and what came out.

outcome = fedssl.reproduce("fedema-3", scale="mini", seeds=1)
for row in outcome.rows: print(row["row"], row["column"], row["published"], row["mean"])
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch

from fedssl.assemble import resolve_device
from fedssl.data.progress import say_on_stderr
from fedssl.drive import Interrupted
from fedssl.errors import ConfigError
from fedssl.recipes import matching
from fedssl.reproduce import found
from fedssl.reproduce.failed import TableError
from fedssl.reproduce.fresh import set_aside
from fedssl.reproduce.markdown import markdown
from fedssl.reproduce.measurable import unmeasurable
from fedssl.reproduce.outcome import Outcome, Result, Where
from fedssl.reproduce.plan import Measure, Training, Want, wants
from fedssl.reproduce.pool import Pool, devices
from fedssl.reproduce.swept import swept
from fedssl.settings import suggest
from fedssl.store import check_writable
from fedssl.tables import Cell, Table, tables

__all__ = ["Outcome", "Result", "TableError", "reproduce", "sweep"]

SCALES = {"paper": "", "short": "-short", "mini": "-mini"}
ROOT = Path("runs/reproduce")
BLINK = 0.5  # seconds between looks at what the processes do


class Display(Protocol):
    """Tells a person how a table comes about."""

    def look(self, outcome: Outcome, pool: Pool) -> None:
        """Twice a second."""

    def ended(self, outcome: Outcome, training: Training, problems: dict[str, str]) -> None:
        """A training is done and measured."""


def reproduce(
    table: str,
    scale: str = "paper",
    seeds: int = 3,
    cells: Sequence[str] = (),
    dir: str | Path = ROOT,
    device: str = "auto",
    data_dir: str | Path = "data",
    display: Display | None = None,
    fresh: bool = False,
) -> Outcome:
    """Train and measure what is missing of a published table; what is there already is not made again.

    `scale` is that of the recipes: "paper", "short" (one local epoch a round) or "mini" (for a CPU). `cells` are
    patterns of names of recipes, rows or columns: one with *, # or {} must fit all of a name, others be part of it.
    `fresh` sets aside, and makes again, what other code than that of today has made.

    Raises TableError, a FedsslError, once all other cells are finished, if some of those asked for failed; its
    `outcome` has the table.
    """
    if scale not in SCALES:
        raise ConfigError(f'unknown scale "{scale}"; known: {", ".join(SCALES)}')
    chosen, where = find_table(table), Where(Path(dir), Path(data_dir), device)
    return _make(chosen, scale, SCALES[scale], seeds, some_cells(chosen, cells), where, display, fresh)


def sweep(
    recipe: str,
    set: Sequence[str] = (),
    seeds: int = 3,
    probes: Sequence[str] = ("linear",),
    dir: str | Path = ROOT,
    device: str = "auto",
    data_dir: str | Path = "data",
    display: Display | None = None,
    fresh: bool = False,
) -> Outcome:
    """Train and measure a recipe or a TOML file with every combination of settings: `set` is ["algorithm.tau=0.5,0.7",
    "method=byol,simsiam"]; commas within brackets or quotes do not separate values.

    Raises TableError as `reproduce` does.
    """
    table, where = swept(recipe, set, probes), Where(Path(dir), Path(data_dir), device)
    return _make(table, "as it is", "", seeds, table.cells, where, display, fresh)


def find_table(name: str) -> Table:
    known = tables()
    if name not in known:
        parts = [each for each in known if each.startswith(name)]
        more = f"; there are {', '.join(parts)}" if parts else suggest(name, known)
        raise ConfigError(f'there is no table "{name}"{more or "; fedssl reproduce --list has them all"}')
    return known[name]


def some_cells(table: Table, patterns: Sequence[str]) -> list[Cell]:
    """Those that one of the patterns fits; without patterns, all."""
    chosen = [cell for cell in table.cells if not patterns or any(_fits(pattern, cell) for pattern in patterns)]
    if not chosen:
        raise ConfigError(
            f"no cell of {table.name} is like {', '.join(patterns)}; fedssl reproduce {table.name} --list"
        )
    return chosen


def _fits(pattern: str, cell: Cell) -> bool:
    names = (cell.recipe, cell.row, cell.column, f"{cell.row}, {cell.column}")
    if {*pattern} & {*"*#{"}:
        return bool(matching(names, pattern))
    return any(pattern.lower() in name.lower() for name in names)


def _make(
    table: Table,
    scale: str,
    suffix: str,
    seeds: int,
    asked: Sequence[Cell],
    where: Where,
    display: Display | None,
    fresh: bool,
) -> Outcome:
    if seeds < 1:
        raise ConfigError(f"seeds is a number above 0 (got {seeds})")
    check_writable(where.root, "--dir")
    on = resolve_device(where.device)
    outcome = Outcome(table, scale, _wants(table, suffix, seeds, where.root, on), seeds, asked, where)
    if all(want.training is None and want.cell.cannot is None for want in outcome.wanted):
        raise ConfigError(outcome.wanted[0].problem or "")  # a setting that no cell can have is a mistake, not a result
    if fresh:
        set_aside(outcome.wanted)
    todo = _todo(outcome)
    if not table.paper:  # those of papers are of images with labels
        todo = _measurable(outcome, todo)
    outcome.save(markdown(outcome))
    if todo:
        _serve(outcome, Pool(todo, devices(on), where.data_dir), display)
    if outcome.failed:
        raise TableError(outcome)
    return outcome


def _wants(table: Table, suffix: str, seeds: int, root: Path, device: torch.device) -> list[Want]:
    """Of the seeds asked for, and of further ones as far as some cell has been measured with them."""
    asked = list(wants(table.cells, suffix, range(seeds), root, device))
    more = (list(wants(table.cells, suffix, [seed], root, device)) for seed in itertools.count(seeds))
    return asked + list(itertools.chain(*itertools.takewhile(_some_measured, more)))


def _some_measured(some: Sequence[Want]) -> bool:
    return any(w.training and w.measure and found.measured(w.training, w.measure) for w in some)


def _todo(outcome: Outcome) -> dict[Training, list[Measure]]:
    """What is asked for and not there, by training: cells share those that are the same."""
    todo: dict[Training, list[Measure]] = {}
    for want in outcome.wanted:
        if want.training is None or want.measure is None or want.problem is not None:
            continue
        if found.measured(want.training, want.measure) is None:
            measures = todo.setdefault(want.training, [])
            measures += [] if want.measure in measures else [want.measure]
    return todo


def _measurable(outcome: Outcome, todo: dict[Training, list[Measure]]) -> dict[Training, list[Measure]]:
    """Without what no accuracy could be had of, which the outcome has for a problem; an error if nothing else was asked
    for."""
    problems = unmeasurable(todo, outcome.where.data_dir, say_on_stderr)
    outcome.problems |= problems
    asked = {(want.training, want.measure.file) for want in outcome.wanted if want.training and want.measure}
    if problems and asked <= problems.keys():
        raise ConfigError(next(iter(problems.values())))
    kept = {t: [each for each in measures if (t, each.file) not in problems] for t, measures in todo.items()}
    return {training: measures for training, measures in kept.items() if measures}


def _serve(outcome: Outcome, pool: Pool, display: Display | None) -> None:
    try:
        while pool.busy or not pool.ended.empty():
            if display is not None:
                display.look(outcome, pool)
            while (ended := pool.next_ended(BLINK)) is not None:
                training, problems = ended
                outcome.problems |= {(training, file): problem for file, problem in problems.items()}
                outcome.save(markdown(outcome))
                if display is not None:
                    display.ended(outcome, training, problems)
    except KeyboardInterrupt:
        pool.stop()
        outcome.save(markdown(outcome))  # what has ended since the last look counts
        raise Interrupted("stopped; what is trained is saved, and the same command goes on") from None
    except BaseException:
        pool.stop()
        raise
