"""Read, write and set aside the files of a table: results and measurements of its trainings.

The whole state of a table is in these files, so that nothing is lost with the process that made
them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedssl.core.console import print_to_stderr
from fedssl.core.files import integrity
from fedssl.core.files.atomic import write_atomic
from fedssl.core.files.lock import locked
from fedssl.core.provenance import UNKNOWN, code
from fedssl.paper_tables.plan import Measure, SeedPlan, Training
from fedssl.runs.rounds_log import read_rounds

MEASURES = "measures"
_CHUNK = 1 << 20  # bytes of a log that are read at once


def read_results(folder: Path, key: str) -> dict[str, Any] | None:
    """Return results.json of a training; None if it is unfinished or of another experiment."""
    return _matching(folder, "results.json", key)


def find_measurement(training: Training, measure: Measure) -> dict[str, Any] | None:
    """Return a measurement of a training; None if it is not made yet."""
    return read_measurement(training.folder, training.key, measure.file)


def read_measurement(folder: Path, key: str, file: str) -> dict[str, Any] | None:
    """Return a measurement in a training's folder; None if not made for experiment `key`."""
    return _matching(folder / MEASURES, file, key)


def write_measurement(folder: Path, file: str, measurement: Mapping[str, Any]) -> None:
    """Write a measurement, one line per key: json.dump would use one per number of a matrix."""
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in measurement.items()]
    text = ",\n".join(lines)
    write_atomic(folder / MEASURES / file, f"{{\n{text}\n}}\n".encode())
    integrity.record_hashes(folder / MEASURES, [file])


def value_of(measurement: Mapping[str, Any]) -> float | None:
    """Return the figure that a cell shows.

    For `per-client` this is the mean over clients in their own mix of classes, because `linear` has
    the mean on all test images too; None if there are no test images of these classes.
    """
    if "own_mix" in measurement:
        return measurement.get("own_mix_mean")
    figure: float | None = measurement["value"]
    return figure


def completed_rounds(training: Training) -> int:
    """Return the number of complete lines in the rounds log."""
    try:
        with (training.folder / "rounds.jsonl").open("rb") as file:
            rounds = 0
            while chunk := file.read(_CHUNK):
                rounds += chunk.count(b"\n")
            return rounds
    except FileNotFoundError:
        return 0


def training_codes(training: Training) -> set[str]:
    """Return the digests of the code that a training, finished or not, was made with.

    Several if the code changed on the way; empty if the training has not begun.
    """
    results = read_results(training.folder, training.key)
    if results is not None:
        return set(results["environment"].get("code", UNKNOWN).split(", "))
    rounds = read_rounds(training.folder / "rounds.jsonl")
    return {str(line.get("code", UNKNOWN)) for line in rounds}


def measurement_code(measurement: Mapping[str, Any]) -> str:
    """Return the digest of the code that made a measurement."""
    return str(measurement.get("code", UNKNOWN))


def set_aside_outdated(plans: Iterable[SeedPlan]) -> None:
    """Rename trainings and measurements made by other code, so that they are made again.

    Nothing is deleted, and files made by the current code stay: after a kill, the same command
    resumes.
    """
    for plan in plans:
        training = plan.training
        measure = plan.measure
        if training is None or measure is None or not training.folder.is_dir():
            continue
        if training_codes(training) - {code()}:
            _set_aside_training(training)
        else:
            _set_aside_measurement(training, measure)


def _set_aside_training(training: Training) -> None:
    measures = training.folder / MEASURES
    measures.mkdir(exist_ok=True)
    with locked(training.folder), locked(measures):  # no other process uses the folder
        codes = "-".join(sorted(training_codes(training)))
        training.folder.rename(_unused_path(training.folder, codes))


def _set_aside_measurement(training: Training, measure: Measure) -> None:
    measurement = find_measurement(training, measure)
    if measurement is None:
        return
    made_by = measurement_code(measurement)
    if made_by != code():
        file = training.folder / MEASURES / measure.file
        file.rename(_unused_path(file, made_by))


def _unused_path(path: Path, codes: str) -> Path:
    """Return PATH.by-CODE, or PATH.by-CODE-1, -2, … if that exists."""
    first = path.with_name(f"{path.name}.by-{codes}")
    unused = first
    number = 0
    while unused.exists():
        number += 1
        unused = first.with_name(f"{first.name}-{number}")
    return unused


def _matching(folder: Path, name: str, key: str) -> dict[str, Any] | None:
    """Return a JSON table of the experiment with this hash.

    None if the file is missing, damaged or of another experiment, so that it is made again.
    """
    try:
        values = integrity.read_json(folder, name) or {}
    except ValueError:
        print_to_stderr(f"{folder / name} is damaged and is ignored: it is made again")
        return None
    if values.get("experiment") != key:
        return None
    return values
