"""What the files of a run directory state about the run, read without its classes.

Importing those takes seconds, and a run may need modules of the user that are not imported here.
"""

from __future__ import annotations

import contextlib
import json
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from fedssl.core.console import ignore_message
from fedssl.core.errors import FedsslError
from fedssl.core.files import integrity
from fedssl.core.files.lock import NAME as LOCK
from fedssl.core.files.lock import is_locked
from fedssl.runs.live_file import NAME as LIVE
from fedssl.runs.live_file import LiveState, read_live

EXPERIMENT = "experiment.toml"
RESULTS = "results.json"
FLOWER = "flower.json"
BASELINES = ("isolated", "centralized")
FROM_PYTHON = "given"  # the data set of images that were passed to `fedssl.run`
# Raised by a damaged file, which may hold anything.
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


class Facts(NamedTuple):
    """What experiment.toml and flower.json state."""

    title: str = ""  # the algorithm, the method and the data set
    rounds: int = 0  # 0: unknown
    epsilon: float | None = None  # the budget of a private run
    private: bool = False
    on_flower: bool = False
    clients: tuple[str, ...] = ()  # of a run on Flower


class Results(NamedTuple):
    """What results.json states."""

    rounds: int
    budget_spent: bool  # a private run ended early
    verdict: str  # a sentence; "" if there is no verdict


class Signs(NamedTuple):
    """Whether a process works on a run, and how far it is. Times are in seconds since the epoch."""

    exists: bool  # the directory
    locked: bool = False  # a process is at work
    lock_time: float = 0.0  # when a process acquired the lock last
    live: LiveState | None = None
    live_time: float = 0.0  # when live.json was written
    results: Results | None = None
    baseline: str | None = None  # the baseline that is trained, and its round

    @property
    def live_is_current(self) -> bool:
        """True if the process that has the lock wrote live.json."""
        return self.live is not None and self.locked and self.live_time >= self.lock_time


def read_facts(folder: Path) -> Facts:
    """Return the facts of a run directory; those of a file that cannot be read are missing."""
    experiment: dict[str, Any] = {}
    with contextlib.suppress(FedsslError, OSError, ValueError):
        text = integrity.read_text(folder, EXPERIMENT, ignore_message)
        experiment = tomllib.loads(text or "")
    privacy = experiment.get("privacy", {})
    if not isinstance(privacy, dict):
        privacy = {}
    rounds = experiment.get("rounds")
    return Facts(
        _title(experiment),
        rounds if isinstance(rounds, int) else 0,
        epsilon=privacy.get("epsilon"),
        private=bool(privacy.get("clip")),
        on_flower=(folder / FLOWER).is_file(),
        clients=_flower_clients(folder),
    )


def _title(experiment: dict[str, Any]) -> str:
    """Return "fedema × byol on cifar10"; "" if the experiment cannot be read."""
    algorithm = _name(experiment.get("algorithm"))
    method = _name(experiment.get("method"))
    data = _name(experiment.get("data"))
    if not algorithm or not method:
        return ""
    title = f"{algorithm} × {method}"
    return title if data in ("", FROM_PYTHON) else f"{title} on {data}"


def _name(table: object) -> str:
    """Return the name in a table of an experiment, which may be the name only."""
    if isinstance(table, dict):
        table = table.get("name", "")
    return table if isinstance(table, str) else ""


def _flower_clients(folder: Path) -> tuple[str, ...]:
    try:
        record = json.loads((folder / FLOWER).read_bytes())
        return tuple(str(client) for client in record["clients"])
    except UNREADABLE:
        return ()


def read_signs(folder: Path) -> Signs:
    """Return whether a process works on a run, and how far it is."""
    if not folder.is_dir():
        return Signs(exists=False)
    live_time = _time_of(folder / LIVE)
    return Signs(
        exists=True,
        locked=is_locked(folder),
        lock_time=_time_of(folder / LOCK),
        live=read_live(folder),
        live_time=live_time,
        results=_results(folder),
        baseline=_baseline(folder),
    )


def _time_of(path: Path) -> float:
    """Return when a file was changed; 0 if it does not exist."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _results(folder: Path) -> Results | None:
    """Return what results.json states; None if it does not exist, or cannot be read."""
    try:
        results = json.loads((folder / RESULTS).read_bytes())
        return Results(
            int(results["rounds"]),
            budget_spent=bool(results.get("privacy", {}).get("budget_spent")),
            verdict=str(results.get("verdict", {}).get("sentence", "")),
        )
    except UNREADABLE:
        return None


def _baseline(folder: Path) -> str | None:
    """Return the baseline that is trained at present, and its round."""
    for name in BASELINES:
        if (folder / name / LOCK).is_file() and is_locked(folder / name):
            live = read_live(folder / name)
            if live is None or not live.round:
                return name
            return f"{name}, round {live.round} of {live.rounds}"
    return None
