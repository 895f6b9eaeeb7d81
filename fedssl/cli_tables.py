"""The command line: fedssl reproduce and sweep."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fedssl.cli_options import AsJson, DataDir, Name
from fedssl.errors import ConfigError
from fedssl.reproduce import ROOT, Outcome, TableError

Seeds = Annotated[int, typer.Option(help="How many: 0, 1, … up to one less.")]
Dir = Annotated[Path, typer.Option(help="Where trainings and tables are kept; goes on with what lies there.")]
Device = Annotated[str, typer.Option(help="cpu, cuda (a training on each of them), cuda:N (that one), or auto.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Make again what other code has made, which is kept aside.")]


def reproduce(
    table: Annotated[str | None, typer.Argument(metavar="TABLE", help="Such as fedema-3; --list has them all.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List all tables, or a table's cells; run nothing.")] = False,
    cells: Annotated[
        list[str],
        typer.Option(metavar="PATTERN", help='Only some: FedEMA, "CIFAR-10, IID", "*-cifar10-*"; repeatable.'),
    ] = [],  # noqa: B006 - typer reads it, nobody changes it
    scale: Annotated[str, typer.Option(help="paper, short (one local epoch a round) or mini (for a CPU).")] = "paper",
    seeds: Seeds = 3,
    dir: Dir = ROOT,
    device: Device = "auto",
    data_dir: DataDir = Path("data"),
    fresh: Fresh = False,
    as_json: AsJson = False,
) -> None:
    """Train and measure a published table, or go on with one, beside the figures that were published."""
    from fedssl.reproduce import SCALES, find_table
    from fedssl.reproduce import reproduce as run

    if scale not in SCALES:
        raise ConfigError(f'unknown scale "{scale}"; known: {", ".join(SCALES)}')
    if list_:
        _list(table, cells, SCALES[scale], as_json)
        return
    if table is None:
        raise ConfigError("name a table; fedssl reproduce --list has them all")
    from fedssl.report.tables import displayed

    find_table(table)
    with _printed(as_json), displayed() as display:
        outcome = run(table, scale, seeds, cells, dir, device, data_dir, display, fresh)
    _tell(outcome, as_json)


def sweep(
    name: Name,
    set: Annotated[
        list[str],
        typer.Option("--set", "-s", metavar="KEY=V1,V2", help="Values of a setting; repeat it for all combinations."),
    ] = [],  # noqa: B006
    probe: Annotated[
        list[str], typer.Option(help="knn, linear, semi, classifier, per-client or collaborative; repeatable.")
    ] = [],  # noqa: B006
    seeds: Seeds = 3,
    dir: Dir = ROOT,
    device: Device = "auto",
    data_dir: DataDir = Path("data"),
    fresh: Fresh = False,
    as_json: AsJson = False,
) -> None:
    """Train and measure an experiment with every combination of some settings.

    Commas within brackets or quotes do not separate values: --set "method.augment.crop=[0.2,1],[0.5,1]" has two.
    """
    from fedssl.report.tables import displayed
    from fedssl.reproduce import sweep as run

    with _printed(as_json), displayed() as display:
        outcome = run(name, set, seeds, probe or ("linear",), dir, device, data_dir, display, fresh)
    _tell(outcome, as_json)


def _list(table: str | None, cells: list[str], suffix: str, as_json: bool) -> None:
    from fedssl.report.catalogue import catalogue, cells_of, print_catalogue, print_cells
    from fedssl.reproduce import find_table, some_cells

    if table is None:
        if cells:
            raise ConfigError("--cells are those of a table: name one; fedssl reproduce --list has them all")
        found = catalogue(suffix)
        print(json.dumps(found)) if as_json else print_catalogue(found)
    else:
        one = find_table(table)
        one = replace(one, cells=tuple(some_cells(one, cells)))
        print(json.dumps(cells_of(one))) if as_json else print_cells(one)


@contextmanager
def _printed(as_json: bool) -> Iterator[None]:
    """Print a table also if some of its cells failed; the error then sets the exit code."""
    try:
        yield
    except TableError as failed:
        _tell(failed.outcome, as_json)
        raise


def _tell(outcome: Outcome, as_json: bool) -> None:
    from fedssl.report.tables import print_outcome

    print(json.dumps(outcome.to_dict())) if as_json else print_outcome(outcome)
