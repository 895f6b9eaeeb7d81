"""`fedssl reproduce --list`: all tables and the work that each takes, or the cells of one table."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable
from rich.text import Text

from fedssl.core.rich_console import wide_console
from fedssl.experiment.lookup import find_recipe
from fedssl.experiment.overrides import merge_changes
from fedssl.experiment.plain_values import parse_assignments
from fedssl.paper_tables.plan import image_passes
from fedssl.paper_tables.published import Cell, Table, tables


def catalogue(suffix: str) -> list[dict[str, Any]]:
    """Return name, title, cells, trainings and image passes of every table, for one seed."""
    return [_summary(table, suffix) for table in tables().values()]


def cells_of(table: Table) -> list[dict[str, Any]]:
    """Return the cells of a table as plain values."""
    return list(map(asdict, table.cells))


def _summary(table: Table, suffix: str) -> dict[str, Any]:
    reproducible = [cell for cell in table.cells if cell.cannot is None]
    trainings = _distinct_trainings(reproducible, suffix)
    return {
        "table": table.name,
        "paper": table.paper,
        "place": table.place,
        "title": table.title,
        "cells": len(table.cells),
        "published": sum(cell.published is not None for cell in table.cells),
        "cannot": sum(cell.cannot is not None for cell in table.cells),
        "trainings": len(trainings),
        "image_passes": sum(image_passes(values) or 0.0 for values in trainings),
    }


def _distinct_trainings(cells: Iterable[Cell], suffix: str) -> Collection[dict[str, Any]]:
    """Return the plain values of the experiments that cells train, each once."""
    trainings: dict[str, dict[str, Any]] = {}
    for cell in cells:
        values = merge_changes(find_recipe(cell.recipe + suffix), parse_assignments(cell.set))
        trained = dict(values)
        trained.pop("probe", None)
        trainings.setdefault(json.dumps(trained, sort_keys=True), values)
    return trainings.values()


def print_catalogue(summaries: Iterable[dict[str, Any]]) -> None:
    """Print a line for each table."""
    grid = RichTable(box=SIMPLE_HEAD, pad_edge=False)
    grid.add_column("table", no_wrap=True)
    grid.add_column("title")
    for heading in ("cells", "published", "trainings", "images, 10⁶"):
        grid.add_column(heading, justify="right")
    for summary in summaries:
        title = f"{summary['paper']}, {summary['place']}: {summary['title']}"
        counts = [str(summary[key]) for key in ("cells", "published", "trainings")]
        if summary["trainings"]:
            work = f"{summary['image_passes'] / 1e6:,.1f}"
        else:
            work = "not reproducible"
        grid.add_row(*map(Text, (summary["table"], title, *counts, work)))
    console = wide_console()
    console.print(grid)
    console.print(
        "Trainings and images are for one seed; an image counts each time it is trained on.",
        highlight=False,
    )


def print_cells(table: Table) -> None:
    """Print a line for each cell of a table, and its notes."""
    grid = RichTable(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("row", "column", "published", "recipe", "changes", "probe"):
        grid.add_column(heading)
    for cell in table.cells:
        columns = (
            cell.row,
            cell.column,
            cell.published or "",
            cell.recipe,
            " ".join(cell.set),
            _probe_text(cell),
        )
        grid.add_row(*map(Text, columns))
    console = wide_console()
    console.print(f"{table.paper}, {table.place}: {table.title}", highlight=False, markup=False)
    console.print(grid)
    for remark in _remarks(table):
        console.print(remark, highlight=False, markup=False)


def _probe_text(cell: Cell) -> str:
    words = [cell.probe, *cell.settings]
    if cell.on:
        words.append(f"on {cell.on}")
    return " ".join(words)


def _remarks(table: Table) -> list[str]:
    """Return the note of a table and why cells are not reproducible, each reason once."""
    remarks: dict[str, None] = {}
    if table.note:
        remarks[table.note] = None
    for cell in table.cells:
        if cell.cannot:
            remarks[f"not reproducible: {cell.cannot}"] = None
    return list(remarks)
