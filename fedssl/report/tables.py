"""`fedssl reproduce` and `fedssl sweep`, told to a person: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table as RichTable
from rich.text import Text

from fedssl.reproduce import Display, Outcome
from fedssl.reproduce.caveat import INCOMPARABLE, published_heading
from fedssl.reproduce.failed import failures
from fedssl.reproduce.found import rounds
from fedssl.reproduce.made import cautions
from fedssl.reproduce.markdown import against, figure
from fedssl.reproduce.outcome import Result
from fedssl.reproduce.plan import Training, passes
from fedssl.reproduce.pool import Pool

FRAME = 8  # lines of a terminal that are not cells


@contextmanager
def displayed() -> Iterator[Display]:
    """Whatever suits standard error."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines()
        return
    from rich.live import Live

    with Live(console=console, refresh_per_second=2, transient=True) as live:
        yield Screen(live, console)


class Lines:
    """A line when a training begins, and one when it ends."""

    def __init__(self) -> None:
        self._begun: set[Training] = set()

    def look(self, outcome: Outcome, pool: Pool) -> None:
        for training in [*pool.running]:
            if training not in self._begun:
                self._begun.add(training)
                print(f"{called(outcome, training)}: {training.folder}", file=sys.stderr, flush=True)

    def ended(self, outcome: Outcome, training: Training, problems: dict[str, str]) -> None:
        results, folder = outcome.asked, str(training.folder)
        done = sum(each.state in ("done", "cannot") for each in results)
        seeds = [(each.cell.probe, seed) for each in results for seed in each.seeds if seed.dir == folder]
        figures = [f"{probe} {seed.value:.2f}" for probe, seed in seeds if seed.value is not None]
        said = "; ".join(dict.fromkeys([*figures, *problems.values()])) or "done"
        at = f"{called(outcome, training)}: {said}"
        print(f"{at} ({done} of {len(results)} cells)", file=sys.stderr, flush=True)


class Screen:
    """All of the table, or as much as fits around what is running now."""

    def __init__(self, live: Any, console: Console) -> None:
        self._live, self._console = live, console
        self._results: list[Result] | None = None
        self._pace = Pace()

    def look(self, outcome: Outcome, pool: Pool) -> None:
        if self._results is None:
            self._results = outcome.shown
        running = dict(pool.running)
        lines = [_running(called(outcome, training), training, begun) for training, begun in running.items()]
        left = self._pace.left(outcome, running)
        shown = _window(self._results, running, self._console.height - FRAME - len(lines))
        now = {str(training.folder) for training in running}
        body = _cells(shown, outcome, now)
        about = Text("\n".join([*lines, left]))
        self._live.update(Group(Text(outcome.title), body, about))

    def ended(self, outcome: Outcome, training: Training, problems: dict[str, str]) -> None:
        self._results = outcome.shown
        self._pace.ended(training)


class Pace:
    """How long the rest will take, at the speed of what has been trained since the beginning."""

    def __init__(self) -> None:
        self._begun, self._before = time.monotonic(), dict[Training, int]()
        self._done = 0.0

    def ended(self, training: Training) -> None:
        all_of_it = _passes(training)
        self._done += all_of_it * (1 - self._before.get(training, 0) / training.experiment.rounds)

    def left(self, outcome: Outcome, running: Mapping[Training, float]) -> str:
        now = self._done
        open_ = {want.training for want in outcome.wanted if want.training is not None and want.problem is None}
        rest = 0.0
        for training in open_:
            at = rounds(training) if training in running else None
            if at is not None:
                before = self._before.setdefault(training, at)
                now += _passes(training) * (at - before) / training.experiment.rounds
                rest += _passes(training) * (1 - at / training.experiment.rounds)
            elif not (training.folder / "results.json").is_file():
                rest += _passes(training)
        if not now:
            return f"{rest:,.0f} images to train on, each time counted"
        seconds = rest / now * (time.monotonic() - self._begun)
        return f"about {timedelta(seconds=round(seconds))} left"


def _passes(training: Training) -> float:
    return passes(training.experiment.to_dict()) or 1e6


def called(outcome: Outcome, training: Training) -> str:
    """A training as its table has it: by its row, which in a sweep is its settings; of a paper also its column, which
    may say what is trained on."""
    cells = [want.cell for want in outcome.wanted if want.training == training]
    names = list(dict.fromkeys(f"{cell.row}, {cell.column}" if outcome.table.paper else cell.row for cell in cells))
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{training.name} ({names[0]}{more}) seed {training.experiment.seed}"


def _running(name: str, training: Training, begun: float) -> str:
    took = timedelta(seconds=round(time.monotonic() - begun))
    done, all_of_them = rounds(training), training.experiment.rounds
    at = "measuring" if done == all_of_them else f"round {done}/{all_of_them}"
    return f"{name}: {at}, {took}"


def _window(results: list[Result], running: Mapping[Training, float], height: int) -> list[Result]:
    if len(results) <= height:
        return results
    folders = {str(training.folder) for training in running}
    at = next((i for i, each in enumerate(results) if any(seed.dir in folders for seed in each.seeds)), 0)
    first = min(max(0, at - height // 2), len(results) - max(1, height))
    return results[first : first + max(1, height)]


def print_outcome(outcome: Outcome) -> None:
    """The table, what did not come about, and where all of it lies."""
    console, results = Console(), outcome.shown
    console = console if console.is_terminal else Console(width=160)
    print(outcome.title)
    console.print(_cells(results, outcome, set()))
    for remark in (INCOMPARABLE[outcome.scale], outcome.table.note):
        if remark:
            print(remark)
    for caution in cautions(outcome):
        print(caution)
    for problem, cells in failures(outcome.failed).items():
        print(f"{cells}: {problem}")
    for reason in dict.fromkeys(each.cell.cannot for each in results if each.cell.cannot):
        print(f"cannot be had: {reason}")
    print(f"every seed, folder and command: {outcome.markdown_file} and {outcome.json_file}")


def _cells(results: list[Result], outcome: Outcome, now: set[str]) -> RichTable:
    shown = RichTable(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("row", "column"):
        shown.add_column(heading)
    published = published_heading(outcome.comparable)
    headings = [published, "measured (seeds)"] + (["difference"] if outcome.comparable else [])
    for heading in headings if outcome.table.paper else headings[1:2]:
        shown.add_column(heading, justify="right", no_wrap=True)
    for each in results:
        measured = figure(each) or ("running" if any(seed.dir in now for seed in each.seeds) else "")
        words = [(each.cell.published or "").replace("±", " ± "), measured, against(each, outcome.comparable)]
        kept = words[: len(headings)] if outcome.table.paper else words[1:2]
        shown.add_row(*map(Text, (each.cell.row, each.cell.column, *kept)))
    return shown
