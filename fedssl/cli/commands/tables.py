"""`fedssl reproduce` and `fedssl sweep`: train and measure tables of experiments."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedssl.cli.options import AsJson, DataDir, Imports, Name
from fedssl.core.errors import ConfigError
from fedssl.paper_tables.published import SCALES, TABLES_DIR, find_table

if TYPE_CHECKING:
    from fedssl.paper_tables.table_results import Outcome

TableName = Annotated[
    str | None,
    typer.Argument(metavar="TABLE", help="Name of a table, such as fedema-3; see --list."),
]
ListTables = Annotated[
    bool,
    typer.Option("--list", help="List all tables, or the cells of a table, and train nothing."),
]
Cells = Annotated[
    list[str],
    typer.Option(
        metavar="PATTERN",
        help='Only these cells: FedEMA, "CIFAR-10, IID", "*-cifar10-*"; repeatable.',
    ),
]
Scale = Annotated[
    str, typer.Option(help="paper, short (one local epoch per round) or mini (for a CPU).")
]
Axes = Annotated[
    list[str],
    typer.Option(
        "--set",
        "-s",
        metavar="KEY=V1,V2",
        help="Values of a setting; repeat for all combinations.",
    ),
]
Probes = Annotated[
    list[str],
    typer.Option(help="knn, linear, semi, classifier, per-client or collaborative; repeatable."),
]
Seeds = Annotated[int, typer.Option(help="Number of seeds, counted from 0.")]
Dir = Annotated[Path, typer.Option(help="Directory of runs and tables; existing ones are resumed.")]
Device = Annotated[
    str,
    typer.Option(
        help="cpu, cuda (one training on each CUDA device), cuda:N (one of them), or auto."
    ),
]
Fresh = Annotated[
    bool,
    typer.Option(
        "--fresh", help="Repeat runs made by another version of the code; old ones are renamed."
    ),
]


def reproduce(
    table: TableName = None,
    list_: ListTables = False,
    cells: Cells = [],  # noqa: B006 - typer reads the default and does not change it
    scale: Scale = "paper",
    seeds: Seeds = 3,
    dir: Dir = TABLES_DIR,
    device: Device = "auto",
    data_dir: DataDir = Path("data"),
    fresh: Fresh = False,
    as_json: AsJson = False,
) -> None:
    """Train and measure the experiments of a published table; compare with the published values."""
    if scale not in SCALES:
        raise ConfigError(f'unknown scale "{scale}"; known: {", ".join(SCALES)}')
    if list_:
        _list(table, cells, SCALES[scale], as_json=as_json)
        return
    if table is None:
        raise ConfigError("name a table; fedssl reproduce --list prints all of them")
    find_table(table)

    from fedssl.paper_tables.reproduce import reproduce as run_table

    run = partial(
        run_table, table, scale, seeds, cells, dir, device, data_dir=data_dir, fresh=fresh
    )
    _run_and_print(run, as_json)


def sweep(
    name: Name,
    set: Axes = [],  # noqa: B006
    probe: Probes = [],  # noqa: B006
    seeds: Seeds = 3,
    dir: Dir = TABLES_DIR,
    device: Device = "auto",
    data_dir: DataDir = Path("data"),
    fresh: Fresh = False,
    imports: Imports = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Train and measure an experiment with every combination of some settings.

    Brackets and quotes protect commas: --set "method.augment.crop=[0.2,1],[0.5,1]" has two values.
    """
    from fedssl.experiment.lookup import check_source

    check_source(name)

    from fedssl.paper_tables.reproduce import sweep as run_sweep

    probes = probe or ["linear"]
    run = partial(
        run_sweep,
        name,
        set,
        seeds,
        probes,
        dir,
        device,
        data_dir=data_dir,
        fresh=fresh,
        imports=imports,
    )
    _run_and_print(run, as_json)


def _list(table: str | None, patterns: list[str], suffix: str, *, as_json: bool) -> None:
    if table is not None:
        _list_cells(table, patterns, as_json)
    elif patterns:
        raise ConfigError(
            "--cells needs a table; name one: fedssl reproduce --list prints all of them"
        )
    else:
        _list_tables(suffix, as_json)


def _list_cells(table: str, patterns: list[str], as_json: bool) -> None:
    from fedssl.cli.table_catalogue import cells_of, print_cells
    from fedssl.paper_tables.reproduce import select_cells

    published = find_table(table)
    selected = replace(published, cells=tuple(select_cells(published, patterns)))
    if as_json:
        print(json.dumps(cells_of(selected)))
    else:
        print_cells(selected)


def _list_tables(suffix: str, as_json: bool) -> None:
    from fedssl.cli.table_catalogue import catalogue, print_catalogue

    summaries = catalogue(suffix)
    if as_json:
        print(json.dumps(summaries))
    else:
        print_catalogue(summaries)


def _run_and_print(run: Callable[..., Outcome], as_json: bool) -> None:
    """Print the table also if some of its cells failed; the error then sets the exit code."""
    from fedssl.cli.table_progress import progress_display
    from fedssl.paper_tables.table_results import TableError

    try:
        with progress_display() as display:
            outcome = run(display=display)
    except TableError as failed:
        _print(failed.outcome, as_json)
        raise
    _print(outcome, as_json)


def _print(outcome: Outcome, as_json: bool) -> None:
    from fedssl.cli.table_progress import print_outcome

    if as_json:
        print(json.dumps(outcome.to_dict()))
    else:
        print_outcome(outcome)
