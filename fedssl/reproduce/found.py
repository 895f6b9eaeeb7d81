"""What lies on disk: whether a training is finished, how far one has come, and what was measured of it.

All that is known of a table is in these files, so that nothing is lost with the process that made them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedssl import integrity
from fedssl.data.progress import say_on_stderr
from fedssl.provenance import UNKNOWN
from fedssl.report.rounds import read_rounds
from fedssl.reproduce.plan import Measure, Training
from fedssl.store import write_atomic

MEASURES = "measures"


def results(folder: Path, key: str) -> dict[str, Any] | None:
    """results.json of a finished training; None while there is none of the experiment with this hash."""
    found = _read(folder, "results.json")
    return found if found.get("experiment") == key else None


def measured(training: Training, measure: Measure) -> dict[str, Any] | None:
    """What a measurement found; None while it is not made."""
    return measurement(training.folder, training.key, measure.file)


def measurement(folder: Path, key: str, file: str) -> dict[str, Any] | None:
    found = _read(folder / MEASURES, file)
    return found if found.get("experiment") == key else None


def value(measurement: Mapping[str, Any]) -> float | None:
    """What a cell shows of a measurement. Of per-client, whose mean on all test images `linear` has too, it is the mean
    over clients in their own mix of classes; None where there are no test images of these classes."""
    found: float | None = measurement.get("own_mix_mean") if "own_mix" in measurement else measurement["value"]
    return found


def trained_by(training: Training) -> set[str]:
    """The code that a training was made with, finished or not: several where it changed on the way, none if it has not
    begun."""
    finished = results(training.folder, training.key)
    if finished is not None:
        return {*finished["environment"].get("code", UNKNOWN).split(", ")}
    return {str(line.get("code", UNKNOWN)) for line in read_rounds(training.folder / "rounds.jsonl")}


def made_by(measurement: Mapping[str, Any]) -> str:
    """The code that a measurement was made with."""
    return str(measurement.get("code", UNKNOWN))


def keep(folder: Path, file: str, found: Mapping[str, Any]) -> None:
    """A line for each key: matrices would take one for each number."""
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in found.items())
    write_atomic(folder / MEASURES / file, f"{{\n{lines}\n}}\n".encode())
    integrity.record_hashes(folder / MEASURES, [file])


def rounds(training: Training) -> int:
    """How many rounds the log has; a line that is being written is none yet."""
    try:
        with (training.folder / "rounds.jsonl").open("rb") as file:
            return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))
    except FileNotFoundError:
        return 0


def _read(folder: Path, name: str) -> dict[str, Any]:
    """Return a JSON table; an empty one if the file is missing or damaged, so that it is measured again."""
    try:
        return integrity.read_json(folder, name) or {}
    except ValueError:
        say_on_stderr(f"{folder / name} is damaged and is not used: it is measured again")
        return {}
