"""Print the summary of an analysis."""

from __future__ import annotations

from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fedssl.analysis import Summary
from fedssl.core.rich_console import wide_console

MAX_ROWS = 40


def print_summary(summary: Summary, *written: Path) -> None:
    """Print the table and the notes of an analysis, and the files that were written."""
    title = Text(summary.title)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    for number, column in enumerate(summary.columns):
        table.add_column(column, justify="right" if number else "left")
    for row in summary.rows[:MAX_ROWS]:
        table.add_row(*map(Text, row))
    wide_console().print(table)
    if len(summary.rows) > MAX_ROWS:
        print(f"the first {MAX_ROWS} of {len(summary.rows)} rows; the JSON file has all of them")
    for note in summary.notes:
        print(note)
    for path in written:
        print(f"wrote {path}")
