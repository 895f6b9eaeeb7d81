"""Reproduce published tables and run sweeps: train and measure the cells that are missing.

outcome = fedssl.reproduce("fedema-3", scale="mini", seeds=1)
for row in outcome.rows: print(row["row"], row["column"], row["published"], row["mean"])
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch

from fedssl.core.console import print_to_stderr
from fedssl.core.devices.select import resolve_device
from fedssl.core.errors import ConfigError
from fedssl.core.files.atomic import check_writable
from fedssl.core.user_modules import import_modules
from fedssl.experiment.recipes import matching
from fedssl.paper_tables import results_on_disk
from fedssl.paper_tables.cell_result import CellResult
from fedssl.paper_tables.markdown import markdown
from fedssl.paper_tables.plan import Measure, SeedPlan, Training, plan_seeds
from fedssl.paper_tables.preflight import unmeasurable
from fedssl.paper_tables.published import SCALES, TABLES_DIR, Cell, Table, find_table
from fedssl.paper_tables.results_on_disk import set_aside_outdated
from fedssl.paper_tables.scheduler import Pool, devices
from fedssl.paper_tables.sweep import sweep_table
from fedssl.paper_tables.sweep_plot import write_sweep_plot
from fedssl.paper_tables.table_results import Outcome, TableError, Workspace
from fedssl.runs.local import Interrupted

__all__ = ["CellResult", "Outcome", "TableError", "reproduce", "sweep"]

POLL_INTERVAL = 0.5  # seconds between updates of the display
SWEEP_SCALE = "as it is"  # recipes of a sweep are trained unscaled

Todo = dict[Training, list[Measure]]


class Display(Protocol):
    """Shows the progress of a table."""

    def update(self, outcome: Outcome, pool: Pool) -> None:
        """Show the current state; called twice a second."""

    def training_ended(
        self, outcome: Outcome, training: Training, problems: dict[str, str]
    ) -> None:
        """Show that a training has ended, with the problem of each failed measurement."""


def reproduce(
    table: str,
    scale: str = "paper",
    seeds: int = 3,
    cells: Sequence[str] = (),
    dir: str | Path = TABLES_DIR,
    device: str = "auto",
    *,
    data_dir: str | Path = "data",
    display: Display | None = None,
    fresh: bool = False,
) -> Outcome:
    """Train and measure the missing cells of a published table; existing results are kept.

    `scale` is that of the recipes: "paper", "short" (one local epoch a round) or "mini" (for a
    CPU). `cells` are patterns for the names of recipes, rows or columns: a pattern with *, # or {}
    must match a whole name, any other text a part of one. `fresh` sets aside trainings and
    measurements that other code has made, and makes them again.

    Raises TableError, a FedsslError, if some requested cells failed, once all others are finished;
    its `outcome` has the table.
    """
    if scale not in SCALES:
        raise ConfigError(f'unknown scale "{scale}"; known: {", ".join(SCALES)}')
    published = find_table(table)
    return _run_table(
        published,
        scale,
        seeds,
        suffix=SCALES[scale],
        requested=select_cells(published, cells),
        workspace=Workspace(Path(dir), Path(data_dir), device),
        display=display,
        fresh=fresh,
    )


def sweep(
    recipe: str,
    set: Sequence[str] = (),
    seeds: int = 3,
    probes: Sequence[str] = ("linear",),
    dir: str | Path = TABLES_DIR,
    device: str = "auto",
    *,
    data_dir: str | Path = "data",
    display: Display | None = None,
    fresh: bool = False,
    imports: Sequence[str] = (),
) -> Outcome:
    """Train and measure a recipe or a TOML file with every combination of settings.

    `set` is e.g. ["algorithm.tau=0.5,0.7", "method=byol,simsiam"]; commas within brackets or quotes
    do not separate values. `imports` are files or modules that register your own classes: the
    processes that train import them too. Raises TableError as `reproduce` does.
    """
    import_modules(imports)
    table = sweep_table(recipe, set, probes)
    return _run_table(
        table,
        SWEEP_SCALE,
        seeds,
        suffix="",
        requested=table.cells,
        workspace=Workspace(Path(dir), Path(data_dir), device),
        display=display,
        fresh=fresh,
    )


def select_cells(table: Table, patterns: Sequence[str]) -> list[Cell]:
    """Return the cells that match one of the patterns; all cells if there are no patterns."""
    selected = []
    for cell in table.cells:
        if not patterns or any(_matches(cell, pattern) for pattern in patterns):
            selected.append(cell)
    if not selected:
        raise ConfigError(
            f"no cell of {table.name} matches {', '.join(patterns)}: "
            f"fedssl reproduce {table.name} --list prints all cells"
        )
    return selected


def _matches(cell: Cell, pattern: str) -> bool:
    names = (cell.recipe, cell.row, cell.column, f"{cell.row}, {cell.column}")
    if set(pattern) & set("*#{"):
        return bool(matching(names, pattern))
    return any(pattern.lower() in name.lower() for name in names)


def _run_table(
    table: Table,
    scale: str,
    seeds: int,
    *,
    suffix: str,
    requested: Sequence[Cell],
    workspace: Workspace,
    display: Display | None,
    fresh: bool,
) -> Outcome:
    if seeds < 1:
        raise ConfigError(f"a table needs at least one seed (got {seeds})")
    check_writable(workspace.root, "--dir")
    device = resolve_device(workspace.device)
    plans = _plan(table, suffix, seeds, root=workspace.root, device=device)
    outcome = Outcome(table, scale, plans, seeds=seeds, requested=requested, workspace=workspace)
    _raise_if_no_cell_is_valid(outcome)
    if fresh:
        set_aside_outdated(outcome.requested_seeds)
    todo = _missing_measures(outcome)
    if not table.paper:  # the images of papers have labels
        todo = _drop_unmeasurable(outcome, todo)
    outcome.save(markdown(outcome))
    if todo:
        _run_pool(outcome, Pool(todo, devices(device), workspace.data_dir), display)
    if not table.paper:
        write_sweep_plot(outcome)
    if outcome.failed:
        raise TableError(outcome)
    return outcome


def _plan(
    table: Table, suffix: str, seeds: int, *, root: Path, device: torch.device
) -> list[SeedPlan]:
    """Return the plans of the requested seeds, and of further ones that some cell has measured."""
    plans = list(plan_seeds(table.cells, suffix, range(seeds), root=root, device=device))
    for seed in itertools.count(seeds):
        further = list(plan_seeds(table.cells, suffix, [seed], root=root, device=device))
        if not any(map(_is_measured, further)):
            break
        plans += further
    return plans


def _is_measured(plan: SeedPlan) -> bool:
    if plan.training is None or plan.measure is None:
        return False
    return results_on_disk.find_measurement(plan.training, plan.measure) is not None


def _raise_if_no_cell_is_valid(outcome: Outcome) -> None:
    """Raise ConfigError if a setting is invalid for every cell: that is a mistake, not a result."""
    plans = outcome.requested_seeds
    for plan in plans:
        if plan.training is not None or plan.cell.cannot is not None:
            return
    raise ConfigError(plans[0].problem or "no cell of the table has a valid experiment")


def _missing_measures(outcome: Outcome) -> Todo:
    """Return the requested measurements that are not on disk, by training.

    Cells with the same training share it.
    """
    todo: Todo = {}
    for plan in outcome.requested_seeds:
        if plan.training is None or plan.measure is None or plan.problem is not None:
            continue
        if _is_measured(plan):
            continue
        measures = todo.setdefault(plan.training, [])
        if plan.measure not in measures:
            measures.append(plan.measure)
    return todo


def _drop_unmeasurable(outcome: Outcome, todo: Todo) -> Todo:
    """Return `todo` without measurements that the images lack labels for.

    They become problems of the outcome. Raises ConfigError if nothing else was requested.
    """
    problems = unmeasurable(todo, outcome.workspace.data_dir, print_to_stderr)
    outcome.problems |= problems
    requested = set()
    for plan in outcome.requested_seeds:
        if plan.training is not None and plan.measure is not None:
            requested.add((plan.training, plan.measure.file))
    if problems and requested <= problems.keys():
        raise ConfigError(next(iter(problems.values())))
    measurable: Todo = {}
    for training, measures in todo.items():
        kept = [measure for measure in measures if (training, measure.file) not in problems]
        if kept:
            measurable[training] = kept
    return measurable


def _run_pool(outcome: Outcome, pool: Pool, display: Display | None) -> None:
    """Wait for all trainings of a pool; save the table whenever one ends."""
    try:
        while pool.busy or not pool.ended.empty():
            if display is not None:
                display.update(outcome, pool)
            while (ended := pool.next_ended(POLL_INTERVAL)) is not None:
                training, problems = ended
                for file, problem in problems.items():
                    outcome.problems[training, file] = problem
                outcome.save(markdown(outcome))
                if display is not None:
                    display.training_ended(outcome, training, problems)
    except KeyboardInterrupt:
        pool.stop()
        outcome.save(markdown(outcome))  # includes trainings that ended since the last update
        raise Interrupted(
            "stopped; finished trainings are saved, run the same command again to resume"
        ) from None
    except BaseException:
        pool.stop()
        raise
