"""trackers.json: which run of each tracker shows a run directory, and what was sent to it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedssl.core.files.atomic import write_atomic

NAME = "trackers.json"


class State(NamedTuple):
    """What a tracker has of a run."""

    rounds: int = 0  # the last round that was sent
    results: str | None = None  # a hash of the results that were sent
    run: str | None = None  # the tracker's own id of the run
    place: str | None = None  # where that id is valid


def read_state(folder: Path, tracker: str) -> State:
    """Return the state of a tracker; that of a new tracker if no state can be read."""
    values = _read(folder).get(tracker)
    if not isinstance(values, dict):
        return State()
    known = {key: value for key, value in values.items() if key in State._fields}
    return State(**known)


def write_state(folder: Path, tracker: str, state: State) -> None:
    """Write the state of a tracker next to those of the others."""
    states = {**_read(folder), tracker: state._asdict()}
    write_atomic(folder / NAME, f"{json.dumps(states, indent=2)}\n".encode())


def hash_results(results: Mapping[str, Any]) -> str:
    """Return a hash of the content of results.json."""
    return hashlib.sha256(json.dumps(results, sort_keys=True).encode()).hexdigest()


def _read(folder: Path) -> dict[str, Any]:
    """Return the states by tracker; none if the file is missing or damaged."""
    try:
        states = json.loads((folder / NAME).read_bytes())
    except (OSError, ValueError):
        return {}
    return states if isinstance(states, dict) else {}
