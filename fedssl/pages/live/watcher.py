"""Poll a run directory, and return the content of the live page."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

from fedssl.core.errors import FedsslError
from fedssl.pages.live.charts import charts
from fedssl.pages.live.client_rows import client_rows
from fedssl.pages.live.history import History
from fedssl.pages.live.log_tail import LogTail
from fedssl.pages.live.page_state import count_states, page_state
from fedssl.pages.live.run_facts import Signs, read_facts, read_signs

LOG = "rounds.jsonl"
# A run releases its lock for a moment between training and measuring.
RELEASE_SECONDS = 3.0


class View(NamedTuple):
    """Content of the live page."""

    head: dict[str, Any]
    charts: list[dict[str, Any]]
    rows: dict[str, dict[str, Any]]  # by client


class Watcher:
    """Reads new lines and states of a run directory; writes nothing there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tail = LogTail(folder / LOG)
        self._history = History()
        self._charts: list[dict[str, Any]] = []
        self._locked_at = float("-inf")

    def poll(self, now: float | None = None) -> View:
        """Read the directory, and return the current content of the page."""
        if now is None:
            now = time.time()
        try:
            signs = self._debounced(read_signs(self.folder), now)
            facts = read_facts(self.folder)
            self._read_log()
        except (OSError, FedsslError) as problem:
            return _unreadable(self.folder, problem, now)
        if signs.live is not None:
            self._history.add_warnings(signs.live.warnings)
        rows = client_rows(facts, self._history, signs)
        head = page_state(self.folder, facts, self._history, signs, self._tail.damaged, now)
        return View(head | {"counts": count_states(rows)}, self._charts, rows)

    def _read_log(self) -> None:
        new = self._tail.read()
        if new.reset:
            self._history = History()
        self._history.add_lines(new.lines)
        if new.reset or new.lines:
            self._charts = charts(self._history)

    def _debounced(self, signs: Signs, now: float) -> Signs:
        """Return the signs with the lock held until it has been free for some seconds."""
        if signs.locked:
            self._locked_at = now
        just_released = signs.exists and now - self._locked_at < RELEASE_SECONDS
        return signs._replace(locked=signs.locked or just_released)


def _unreadable(folder: Path, problem: Exception, now: float) -> View:
    """Return the view of a directory that cannot be read."""
    head = {
        "title": folder.absolute().name,
        "state": "failed",
        "label": "Unreadable",
        "detail": f"The run directory cannot be read: {problem}",
        "now": now,
    }
    return View(head, [], {})
