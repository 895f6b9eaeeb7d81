"""The final table of a run, for a person."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedssl.run import Run
from fedssl.topology import MEAN

ROWS = 40  # of an analysis that are printed
APART = 5  # models beside the clients' own, or the peers', that have a row; all are in results.json
_WORDS = {
    "this run": "this run",
    "random": "random backbone",
    "isolated": "each client alone",
    "centralized": "all images pooled",
    MEAN: "mean of the peers' models",
    "global": "global model",
}


def print_results(run: Run) -> None:
    console = Console()
    rows = run.results.get("table", {})
    if rows:
        print(_title(run))
        console.print(_table(run, rows))
    elif run.results.get("models", 1):
        console.print("No labelled test images, so no accuracy was measured.")
    for note in run.results.get("notes", ()):
        print(note)
    print(f"run directory  {run.dir}")  # not through rich, which breaks long paths and reads brackets as colours
    for file in sorted(run.dir.glob("backbone*.safetensors")):
        print(f"backbone       {file}")
    if (run.dir / "picture.png").is_file():
        print(f"picture        {run.dir / 'picture.png'}")


def _table(run: Run, rows: dict[str, dict[str, Any]]) -> Table:
    labels = _labels(run.experiment.probe.labels)
    headings = {"knn": "kNN, all labels", "linear": f"linear probe, {labels}"}
    table = Table()
    table.add_column("backbone")
    for key in rows["this run"]:
        table.add_column(headings[key], justify="right")
    for name, scores in rows.items():
        table.add_row(_WORDS.get(name, name), *(_cell(score) for score in scores.values()))
        if name == "this run":
            for model in next(iter(scores.values())).get("apart", [])[:APART]:
                table.add_row(_WORDS.get(model, model), *(f"{score['models'][model]:.1f}" for score in scores.values()))
    return table


def _labels(labels: float) -> str:
    """Of the linear probe, as a heading has it."""
    if labels in (0, 1):
        return "all labels"
    return f"{100 * labels:g}% of labels" if labels < 1 else f"{labels:.0f} labels"


def _title(run: Run) -> str:
    names = [run.experiment.to_dict()[table]["name"] for table in ("method", "algorithm", "topology")]
    return f"{' × '.join(names)}: accuracy in %"


def _cell(score: dict[str, Any]) -> str:
    return f"{score['mean']:.1f} ± {score['std']:.1f}" if "std" in score else f"{score['mean']:.1f}"


class Tabled(Protocol):
    """What an analysis has to say to a person."""

    @property
    def title(self) -> str: ...
    @property
    def columns(self) -> Sequence[str]: ...
    @property
    def rows(self) -> Sequence[Sequence[str]]: ...
    @property
    def notes(self) -> Sequence[str]: ...


def print_summary(summary: Tabled, *written: Path) -> None:
    """A table, what must be said beside it, and where everything was written. All rows but so many are in the JSON."""
    console = Console()
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=Text(summary.title), title_justify="left")
    for number, column in enumerate(summary.columns):
        table.add_column(column, justify="right" if number else "left")
    for row in summary.rows[:ROWS]:
        table.add_row(*map(Text, row))
    console.print(table)
    if len(summary.rows) > ROWS:
        print(f"the first {ROWS} of {len(summary.rows)} rows; the JSON has them all")
    for note in summary.notes:
        print(note)
    for path in written:
        print(f"wrote {path}")
