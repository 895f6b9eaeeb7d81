"""`fedssl reproduce --list`: all tables and how much work each is; or the cells of one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from fedssl.changes import merge_changes, parse_assignments
from fedssl.reproduce.plan import passes
from fedssl.tables import Cell, Table, tables
from fedssl.variants import find

WIDE = 10_000  # columns off a terminal: a line for each


def catalogue(suffix: str) -> list[dict[str, Any]]:
    """Of every table its name, title, cells, trainings and images to train on for one seed, each time counted."""
    return [_size(table, suffix) for table in tables().values()]


def cells_of(table: Table) -> list[dict[str, Any]]:
    return [
        {"row": cell.row, "column": cell.column, "recipe": cell.recipe, "set": list(cell.set), "probe": cell.probe}
        | {"settings": list(cell.settings), "on": cell.on, "published": cell.published, "cannot": cell.cannot}
        for cell in table.cells
    ]


def _size(table: Table, suffix: str) -> dict[str, Any]:
    trained = list(_trainings((cell for cell in table.cells if cell.cannot is None), suffix))
    known = [passes(values) for values in trained]
    return {
        "table": table.name,
        "paper": table.paper,
        "place": table.place,
        "title": table.title,
        "cells": len(table.cells),
        "published": sum(cell.published is not None for cell in table.cells),
        "cannot": sum(cell.cannot is not None for cell in table.cells),
        "trainings": len(trained),
        "image_passes": sum(each or 0.0 for each in known),
    }


def _trainings(cells: Iterable[Cell], suffix: str) -> Iterable[dict[str, Any]]:
    """The plain values of what cells train, each once."""
    found: dict[str, dict[str, Any]] = {}
    for cell in cells:
        values = merge_changes(find(cell.recipe + suffix), parse_assignments(cell.set))
        trained = {key: value for key, value in values.items() if key != "probe"}
        found.setdefault(json.dumps(trained, sort_keys=True), values)
    return found.values()


def print_catalogue(found: list[dict[str, Any]]) -> None:
    shown = RichTable(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("table", "what"):
        shown.add_column(heading, no_wrap=heading == "table")
    for heading in ("cells", "with a figure", "trainings", "images, 10⁶"):
        shown.add_column(heading, justify="right")
    for each in found:
        counts = [str(each[key]) for key in ("cells", "published", "trainings")]
        millions = f"{each['image_passes'] / 1e6:,.1f}" if each["trainings"] else "cannot be had"
        what = f"{each['paper']}, {each['place']}: {each['title']}"
        shown.add_row(*map(Text, (each["table"], what, *counts, millions)))
    console = _console()
    console.print(shown)
    console.print("Trainings, and the images they train on, each time counted, are for one seed.", highlight=False)


def print_cells(table: Table) -> None:
    shown = RichTable(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("row", "column", "published", "recipe", "changes", "probe"):
        shown.add_column(heading)
    for cell in table.cells:
        probe = " ".join([cell.probe, *cell.settings, *([f"on {cell.on}"] if cell.on else [])])
        words = (cell.row, cell.column, cell.published or "", cell.recipe, " ".join(cell.set), probe)
        shown.add_row(*map(Text, words))
    console = _console()
    console.print(f"{table.paper}, {table.place}: {table.title}", highlight=False, markup=False)
    console.print(shown)
    for remark in dict.fromkeys(
        [table.note, *(f"cannot be had: {cell.cannot}" for cell in table.cells if cell.cannot)]
    ):
        if remark:
            console.print(remark, highlight=False, markup=False)


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=WIDE)
