"""Arrange the cells of a table in columns, for the console and for Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from fedssl.paper_tables.cell_result import CellResult
from fedssl.paper_tables.comparability import published_heading
from fedssl.paper_tables.table_results import Outcome

Text = Callable[[CellResult], str]  # returns the text of a cell


class Columns(NamedTuple):
    """Headings and rows of text; columns from number `names` on contain figures."""

    headings: list[str]
    rows: list[list[str]]
    names: int


def arrange(outcome: Outcome, results: Sequence[CellResult], measured: Text) -> Columns:
    """Return the cells of a paper one below the other, and those of a sweep by probe.

    `measured` returns the text of a measured figure.
    """
    if outcome.table.paper:
        return _one_below_the_other(outcome, results, measured)
    return _by_probe(results, measured)


def _one_below_the_other(
    outcome: Outcome, results: Sequence[CellResult], measured: Text
) -> Columns:
    """Return a row for each cell; published figures and differences only if there are any."""
    published = any(map(published_text, results))
    difference = published and outcome.comparable
    headings = ["row", "column"]
    if published:
        headings.append(published_heading(outcome.comparable))
    headings.append("measured (seeds)")
    if difference:
        headings.append("difference")
    rows = []
    for result in results:
        row = [result.cell.row, result.cell.column]
        if published:
            row.append(published_text(result))
        row.append(measured(result))
        if difference:
            row.append(difference_text(result))
        rows.append(row)
    return Columns(headings, rows, names=2)


def _by_probe(results: Sequence[CellResult], measured: Text) -> Columns:
    """Return a row for each combination of settings and a column for each probe."""
    texts: dict[str, dict[str, str]] = {}
    headings: dict[str, None] = {}
    for result in results:
        heading = f"{result.cell.column} (seeds)"
        headings[heading] = None
        texts.setdefault(result.cell.row, {})[heading] = measured(result)
    rows = []
    for name, by_heading in texts.items():
        row = [name]
        for heading in headings:
            row.append(by_heading.get(heading, ""))  # a cell that is not displayed is empty
        rows.append(row)
    return Columns(["settings", *headings], rows, names=1)


def measured_text(result: CellResult) -> str:
    """Return the measured figure, e.g. "82.10 ± 0.31 (3)", or the state of the cell."""
    if result.state == "cannot":
        return "not reproducible"
    if result.mean is not None:
        text = f"{result.mean:.2f}"
        if result.std is not None:
            text += f" ± {result.std:.2f}"
        return f"{text} ({len(result.values)})"
    if result.state == "failed":
        return "failed"
    if result.state == "missing":
        return ""
    if result.values:
        return f"{len(result.values)} of {len(result.seeds)} seeds"
    return "none"


def published_text(result: CellResult) -> str:
    """Return the published figure, e.g. "79.44 ± 0.99"; or an empty string."""
    return (result.cell.published or "").replace("±", " ± ")


def difference_text(result: CellResult) -> str:
    """Return measured minus published, e.g. "−0.32"; empty if there is no difference."""
    if result.difference is None:
        return ""
    return f"{result.difference:+.2f}".replace("-", "−")
