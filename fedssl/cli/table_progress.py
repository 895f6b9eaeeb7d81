"""Progress and results of `fedssl reproduce` and `fedssl sweep`.

On a terminal, progress is a live table; elsewhere, plain lines.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table as RichTable
from rich.text import Text

from fedssl.core.rich_console import Console, wide_console
from fedssl.paper_tables.cell_result import CellResult
from fedssl.paper_tables.columns import arrange, measured_text
from fedssl.paper_tables.comparability import INCOMPARABLE, provenance_warnings
from fedssl.paper_tables.plan import Training, image_passes
from fedssl.paper_tables.reproduce import Display, Outcome
from fedssl.paper_tables.results_on_disk import completed_rounds
from fedssl.paper_tables.scheduler import Pool
from fedssl.paper_tables.table_results import failures

OTHER_LINES = 8  # lines of a terminal that are not cells
WIDTH = 160  # columns of the final table if there is no terminal
UNKNOWN_SIZE = 1e6  # image passes assumed for a data set of unknown size


@contextmanager
def progress_display() -> Iterator[Display]:
    """Yield the display that suits standard error."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines()
        return
    from rich.live import Live

    with Live(console=console, refresh_per_second=2, transient=True) as live:
        yield Screen(live, console)


class Lines:
    """Print a line when a training begins and one when it ends."""

    def __init__(self) -> None:
        self._begun: set[Training] = set()

    def update(self, outcome: Outcome, pool: Pool) -> None:
        """Print a line for each training that has begun since the last call."""
        for training in list(pool.running):
            if training not in self._begun:
                self._begun.add(training)
                title = training_title(outcome, training)
                print(f"{title}: {training.folder}", file=sys.stderr, flush=True)

    def training_ended(
        self, outcome: Outcome, training: Training, problems: dict[str, str]
    ) -> None:
        """Print the figures of a training, and its problems."""
        results = outcome.requested_cells
        done = sum(result.state in ("done", "cannot") for result in results)
        figures = []
        for result in results:
            figures += _figures_of(result, training)
        text = "; ".join(dict.fromkeys([*figures, *problems.values()])) or "done"
        title = training_title(outcome, training)
        print(f"{title}: {text} ({done} of {len(results)} cells)", file=sys.stderr, flush=True)


def _figures_of(result: CellResult, training: Training) -> list[str]:
    """Return the figures of a cell that a training has, e.g. ["linear 78.00"]."""
    folder = str(training.folder)
    return [
        f"{result.cell.probe} {seed.value:.2f}"
        for seed in result.seeds
        if seed.dir == folder and seed.value is not None
    ]


class Screen:
    """Show the live table, or the part around the running trainings that fits the terminal."""

    def __init__(self, live: Any, console: Console) -> None:
        self._live = live
        self._console = console
        self._results: list[CellResult] | None = None
        self._estimate = TimeEstimate()

    def update(self, outcome: Outcome, pool: Pool) -> None:
        """Redraw the table."""
        if self._results is None:
            self._results = outcome.displayed_cells
        running = dict(pool.running)
        lines = []
        for training, begun in running.items():
            lines.append(_running_line(training_title(outcome, training), training, begun))
        lines.append(self._estimate.time_left(outcome, running))
        height = self._console.height - OTHER_LINES - len(running)
        folders = {str(training.folder) for training in running}
        visible = _visible_part(self._results, folders, height)
        grid = _result_grid(visible, outcome, folders)
        self._live.update(Group(Text(outcome.title), grid, Text("\n".join(lines))))

    def training_ended(
        self, outcome: Outcome, training: Training, problems: dict[str, str]
    ) -> None:
        """Read the results again and update the estimate."""
        self._results = outcome.displayed_cells
        self._estimate.training_ended(training)


class TimeEstimate:
    """Estimate the remaining time from the speed of all training since the start."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._rounds_before: dict[Training, int] = {}  # finished by an earlier command
        self._passes_done = 0.0

    def training_ended(self, training: Training) -> None:
        """Count the images of a training that this command has trained on."""
        share_before = self._rounds_before.get(training, 0) / training.experiment.rounds
        self._passes_done += _passes(training) * (1 - share_before)

    def time_left(self, outcome: Outcome, running: Mapping[Training, float]) -> str:
        """Return the remaining time, or the remaining images as long as no round is finished."""
        done = self._passes_done
        rest = 0.0
        trainings = {
            plan.training
            for plan in outcome.requested_seeds
            if plan.training is not None and plan.problem is None
        }
        for training in trainings:
            total = training.experiment.rounds
            if training in running:
                completed = completed_rounds(training)
                before = self._rounds_before.setdefault(training, completed)
                done += _passes(training) * (completed - before) / total
                rest += _passes(training) * (1 - completed / total)
            elif not (training.folder / "results.json").is_file():
                rest += _passes(training)
        if not done:
            return f"{rest:,.0f} images to train on, counting every pass"
        seconds = rest / done * (time.monotonic() - self._begun)
        return f"about {timedelta(seconds=round(seconds))} left"


def _passes(training: Training) -> float:
    return image_passes(training.experiment.to_dict()) or UNKNOWN_SIZE


def training_title(outcome: Outcome, training: Training) -> str:
    """Return a title for a training: its recipe, the first of its cells, and the seed.

    The row of a sweep has the settings. For a paper the column is added, because it may name the
    data that is trained on.
    """
    cells = [plan.cell for plan in outcome.requested_seeds if plan.training == training]
    if outcome.table.paper:
        names = dict.fromkeys(f"{cell.row}, {cell.column}" for cell in cells)
    else:
        names = dict.fromkeys(cell.row for cell in cells)
    first = next(iter(names))
    if len(names) == 2:
        first = " and ".join(names)
    if len(names) > 2:
        first += f" and {len(names) - 1} more"
    return f"{training.name} ({first}) seed {training.experiment.seed}"


def _running_line(title: str, training: Training, begun: float) -> str:
    elapsed = timedelta(seconds=round(time.monotonic() - begun))
    completed = completed_rounds(training)
    total = training.experiment.rounds
    state = "measuring" if completed == total else f"round {completed}/{total}"
    return f"{title}: {state}, {elapsed}"


def _visible_part(results: list[CellResult], running: set[str], height: int) -> list[CellResult]:
    """Return at most `height` cells, around the first that is trained in a folder of `running`."""
    if len(results) <= height:
        return results
    height = max(1, height)
    center = 0
    for index, result in enumerate(results):
        if _is_running(result, running):
            center = index
            break
    first = min(max(0, center - height // 2), len(results) - height)
    return results[first : first + height]


def _is_running(result: CellResult, running: set[str]) -> bool:
    return any(seed.dir in running for seed in result.seeds)


def print_outcome(outcome: Outcome) -> None:
    """Print the table, its remarks and problems, and where it is stored."""
    results = outcome.displayed_cells
    print(outcome.title)
    wide_console(WIDTH).print(_result_grid(results, outcome, running=set()))
    for remark in (INCOMPARABLE[outcome.scale], outcome.table.note):
        if remark:
            print(remark)
    for warning in provenance_warnings(outcome.results):
        print(warning)
    for problem, cells in failures(outcome.failed).items():
        print(f"{cells}: {problem}")
    for reason in dict.fromkeys(result.cell.cannot for result in results):
        if reason:
            print(f"not reproducible: {reason}")
    print(f"every seed, folder and command: {outcome.markdown_file} and {outcome.json_file}")
    if outcome.plot_file.is_file():
        print(f"plot: {outcome.plot_file}")


def _result_grid(results: list[CellResult], outcome: Outcome, running: set[str]) -> RichTable:
    """Return the table of figures."""
    columns = arrange(outcome, results, lambda result: _measured_or_running(result, running))
    grid = RichTable(box=SIMPLE_HEAD, pad_edge=False)
    for number, heading in enumerate(columns.headings):
        if number < columns.names:
            grid.add_column(heading)
        else:
            grid.add_column(heading, justify="right", no_wrap=True)
    for row in columns.rows:
        grid.add_row(*map(Text, row))
    return grid


def _measured_or_running(result: CellResult, running: set[str]) -> str:
    text = measured_text(result)
    if not text and _is_running(result, running):
        return "running"
    return text
