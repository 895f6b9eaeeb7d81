"""Make the table of a sweep: one recipe with every combination of some settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any

from fedssl.core.errors import ConfigError
from fedssl.evaluation.probe_settings import check_probe
from fedssl.experiment.overrides import full_key
from fedssl.experiment.plain_values import parse_assignment, parse_assignments
from fedssl.paper_tables.published import Cell, Table

# Headings of columns that differ from the name of their probe, and the notes that explain them.
COLUMNS = {"per-client": "per-client, own mix"}
NOTES = {
    "per-client": "per-client, own mix: the mean over clients of each one's accuracy on test "
    "images in the mix of classes that the client has."
}
_CLOSING = {"[": "]", "{": "}", '"': '"', "'": "'"}


def sweep_table(recipe: str, assignments: Sequence[str], probes: Sequence[str]) -> Table:
    """Return a table with a row for each combination of values and a column for each probe."""
    for probe in probes:
        check_probe(probe)
    if len(set(probes)) < len(probes):
        raise ConfigError(f"a probe is listed twice: {', '.join(probes)}; list each probe once")
    axes = list(map(_read_axis, assignments))
    _check_distinct_keys(assignments, axes)
    cells = []
    for changes in product(*axes):
        row = _row_name(changes, axes)
        for probe in probes:
            column = COLUMNS.get(probe, probe)
            cells.append(Cell(row, column, recipe, probe=probe, set=changes))
    fixed = ", ".join(axis[0] for axis in axes if len(axis) == 1)
    return Table(
        _table_name(recipe, assignments, probes),
        paper="",
        place="Sweep",
        title=f"{recipe} with {fixed}" if fixed else recipe,
        cells=tuple(cells),
        note=" ".join(NOTES[probe] for probe in probes if probe in NOTES),
    )


def _row_name(changes: Sequence[str], axes: Sequence[Sequence[str]]) -> str:
    """Return the changes that differ between rows; all of them if none does."""
    varied = [change for change, axis in zip(changes, axes, strict=True) if len(axis) > 1]
    return ", ".join(varied) or ", ".join(changes) or "as it is"


def _table_name(recipe: str, assignments: Sequence[str], probes: Sequence[str]) -> str:
    text = json.dumps([recipe, list(assignments), list(probes)])
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"sweep-{Path(recipe).name.removesuffix('.toml')}-{digest}"


def _check_distinct_keys(assignments: Sequence[str], axes: Sequence[Sequence[str]]) -> None:
    """Raise ConfigError if two assignments set one key, or a table and a key in it.

    Otherwise the names of rows would differ from what was trained.
    """
    keys = dict(zip(assignments, map(_dotted_keys, axes), strict=True))
    for one, other in combinations(assignments, 2):
        if _overlap(keys[one], keys[other]):
            raise ConfigError(
                f'--set "{one}" and --set "{other}" set the same key: name it once, with all values'
            )


def _overlap(keys: set[str], other_keys: set[str]) -> bool:
    pairs = product(keys, other_keys)
    return any(key.startswith(other) or other.startswith(key) for key, other in pairs)


def _dotted_keys(axis: Sequence[str]) -> set[str]:
    """Return the keys that assignments set, with a final dot; several if a value is a table."""
    keys = set()
    for assignment in axis:
        for key, value in parse_assignments([assignment]).items():
            keys.add(f"{full_key(key, value)}.")
    return keys


def _read_axis(text: str) -> list[str]:
    """Return [KEY=V1, KEY=V2] for KEY=V1,V2."""
    key, equals, values = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigError(f'--set "{text}" is not of the form key=value or key=value,value')
    if key == "seed":
        raise ConfigError("--set cannot change the seed: give the number of seeds with --seeds")
    assignments = []
    known: list[Any] = []
    for value_text in map(str.strip, split_values(values)):
        _, value = parse_assignment(f"v={value_text}")
        if not value_text or value in known:
            raise ConfigError(f'--set "{text}" has an empty value or the same value twice')
        known.append(value)
        assignments.append(f"{key}={value_text}")
    return assignments


def split_values(values: str) -> list[str]:
    """Split at commas outside of brackets and quotes: "[0.2,1],[0.5,1]" has two values."""
    parts = [""]
    open_until: list[str] = []
    for letter in values:
        quoted = open_until[-1:] in (['"'], ["'"])
        if open_until and letter == open_until[-1]:
            open_until.pop()
        elif letter in _CLOSING and not quoted:
            open_until.append(_CLOSING[letter])
        elif letter == "," and not open_until:
            parts.append("")
            continue
        parts[-1] += letter
    if open_until:
        raise ConfigError(f"the values {values} lack a closing {open_until[-1]}")
    return parts
