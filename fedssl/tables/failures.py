"""Report the cells of a table that failed."""

from __future__ import annotations

from collections.abc import Iterable

from fedssl.core.console import shortened
from fedssl.core.errors import FedsslError
from fedssl.tables.cell_result import CellResult
from fedssl.tables.table_results import Outcome

MAX_LISTED = 3  # cells that are listed for each reason


class TableError(FedsslError):
    """Some cells failed; all others are finished and saved. `outcome` has the whole table."""

    def __init__(self, outcome: Outcome) -> None:
        failed = outcome.failed
        reasons = []
        for reason, cells in failures(failed).items():
            reasons.append(f"{cells}: {reason}")
        super().__init__(
            f"{len(failed)} of {len(outcome.requested_cells)} cells failed ({'; '.join(reasons)}); "
            f"{outcome.markdown_file} has the reason for every seed"
        )
        self.outcome = outcome


def failures(failed: Iterable[CellResult]) -> dict[str, str]:
    """Return the names of failed cells by reason, each reason on one line."""
    cells: dict[str, list[str]] = {}
    for result in failed:
        reason = " ".join((result.problem or "not run").split())
        cells.setdefault(reason, []).append(f"{result.cell.row}, {result.cell.column}")
    return {reason: "; ".join(shortened(names, MAX_LISTED)) for reason, names in cells.items()}
