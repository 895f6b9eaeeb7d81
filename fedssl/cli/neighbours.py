"""Print the table of `fedssl search`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from fedssl.core.rich_console import wide_console
from fedssl.data.folder_listing import printable
from fedssl.downstream.search import Neighbour


def print_neighbours(neighbours: Sequence[Neighbour]) -> None:
    """Print rank, similarity and name of each neighbour."""
    table = Table(box=None, pad_edge=False)
    table.add_column("rank", justify="right")
    table.add_column("similarity", justify="right")
    table.add_column("file", overflow="fold")
    for neighbour in neighbours:
        name = printable(neighbour.name).replace("[", r"\[")
        table.add_row(str(neighbour.rank), f"{neighbour.similarity:.4f}", name)
    wide_console().print(table)
