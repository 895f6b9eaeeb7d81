"""Print the report of `fedssl classify`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.table import Table

from fedssl.core.rich_console import wide_console
from fedssl.downstream.classify.report import Report
from fedssl.evaluation.verdict import ends, signed


def print_report(report: Report) -> None:
    """Print the accuracy in total, next to the largest class, and for each class."""
    accuracy = report.accuracy
    images = sum(row.images for row in report.rows)
    print(
        f"cross-validated accuracy: {accuracy.estimate:.1f}% (95% interval {accuracy.low:.1f} … "
        f"{accuracy.high:.1f}), {images:,} labelled images, {report.folds} folds"
    )
    print(
        f'always answering "{report.majority_class}": {report.majority:.1f}%; difference '
        f"{signed(report.gain.estimate)} points (95% interval {ends(report.gain)})"
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("class")
    table.add_column("images", justify="right")
    table.add_column("recall", justify="right")
    table.add_column("precision", justify="right")
    table.add_column("mostly confused with")
    for row in report.rows:
        precision = "" if row.precision is None else f"{row.precision:.0f}%"
        cells = (row.name, f"{row.images:,}", f"{row.recall:.0f}%", precision)
        table.add_row(*map(_plain, cells), _plain(row.confused_with or ""))
    wide_console().print(table)


def print_counts(counts: Mapping[str, int], path: Path) -> None:
    """Print how many images were predicted as each class."""
    print(f"classified {sum(counts.values()):,} images:")
    width = max(map(len, counts))
    for name, count in counts.items():
        print(f"  {name:{width}}  {count:,}")
    print(f"wrote {path}")


def _plain(text: str) -> str:
    """Return text that rich prints as it is."""
    return text.replace("[", r"\[")
