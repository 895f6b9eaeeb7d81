"""Report the cells of a table that failed."""

from __future__ import annotations

from collections.abc import Iterable

from fedssl.errors import FedsslError
from fedssl.reproduce.outcome import Outcome, Result

NAMED = 3  # cells that are named for each reason


class TableError(FedsslError):
    """Some cells failed. What could be finished is finished and saved; `outcome` has the whole table."""

    def __init__(self, outcome: Outcome) -> None:
        failed = outcome.failed
        reasons = [f"{cells}: {reason}" for reason, cells in failures(failed).items()]
        super().__init__(
            f"{len(failed)} of {len(outcome.asked)} cells failed ({'; '.join(reasons)}); "
            f"{outcome.markdown_file} has the reason for every seed"
        )
        self.outcome = outcome


def failures(failed: Iterable[Result]) -> dict[str, str]:
    """Return the names of failed cells by reason, each reason on one line."""
    cells: dict[str, list[str]] = {}
    for result in failed:
        reason = " ".join((result.problem or "not run").split())
        cells.setdefault(reason, []).append(f"{result.cell.row}, {result.cell.column}")
    return {reason: _listed(names) for reason, names in cells.items()}


def _listed(names: list[str]) -> str:
    more = f"; and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return "; ".join(names[:NAMED]) + more
