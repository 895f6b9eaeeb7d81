"""A table of one's own: one recipe with every combination of some settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from itertools import combinations, product
from pathlib import Path

from fedssl.changes import full_key, parse_assignment, parse_assignments
from fedssl.errors import ConfigError
from fedssl.evaluate import check_probe
from fedssl.tables import Cell, Table

# Columns that are not called as their probe is, and what is to be said of them below the table.
COLUMNS = {"per-client": "per-client, own mix"}
NOTES = {
    "per-client": "per-client, own mix: the mean over clients of each one's accuracy on test images in the mix of "
    "classes that the client has."
}
_CLOSING = {"[": "]", "{": "}", '"': '"', "'": "'"}


def swept(recipe: str, assignments: Sequence[str], probes: Sequence[str]) -> Table:
    """Rows are combinations, columns are probes."""
    for probe in probes:
        check_probe(probe)
    if len({*probes}) < len(probes):
        raise ConfigError(f"a probe is asked for twice: {', '.join(probes)}")
    axes = [list(_axis(text)) for text in assignments]
    _check_apart(assignments, axes)
    cells = []
    for chosen in product(*axes):
        varied = [each for each, axis in zip(chosen, axes, strict=True) if len(axis) > 1]
        row = ", ".join(varied) or ", ".join(chosen) or "as it is"
        cells += [Cell(row, COLUMNS.get(probe, probe), recipe, probe, set=chosen) for probe in probes]
    fixed = ", ".join(axis[0] for axis in axes if len(axis) == 1)
    title = recipe + (f" with {fixed}" if fixed else "")
    said = hashlib.sha256(json.dumps([recipe, list(assignments), list(probes)]).encode()).hexdigest()[:8]
    name = f"sweep-{Path(recipe).name.removesuffix('.toml')}-{said}"
    note = " ".join(NOTES[probe] for probe in probes if probe in NOTES)
    return Table(name, "", "Sweep", title, tuple(cells), note)


def _check_apart(assignments: Sequence[str], axes: Sequence[Sequence[str]]) -> None:
    """Refuse two that set one key, or a table and a key in it: rows would say what was not trained."""
    keys = [{f"{key}." for each in axis for key in _keys(each)} for axis in axes]
    for (one, some), (other, others) in combinations(zip(assignments, keys, strict=True), 2):
        if any(a.startswith(b) or b.startswith(a) for a, b in product(some, others)):
            raise ConfigError(f'"{one}" and "{other}" set the same key: name it once, with all its values')


def _keys(assignment: str) -> list[str]:
    """Return the dotted keys that an assignment sets: several where its value is a table."""
    return [full_key(key, value) for key, value in parse_assignments([assignment]).items()]


def _axis(text: str) -> Iterator[str]:
    """KEY=V1,V2 → KEY=V1, KEY=V2."""
    key, equals, values = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f'"{text}" is not key=value or key=value,value')
    if key.strip() == "seed":
        raise ConfigError("seeds are asked for with --seeds, not with --set")
    found = [value.strip() for value in split(values)]
    parsed = [parse_assignment(f"v={value}")[1] for value in found]
    if not all(found) or any(value in parsed[:place] for place, value in enumerate(parsed)):
        raise ConfigError(f'"{text}" has an empty value, or one value twice')
    yield from (f"{key.strip()}={value}" for value in found)


def split(values: str) -> list[str]:
    """At commas that are not within brackets or quotes: "[0.2,1],[0.5,1]" are two values."""
    parts, open_until = [""], list[str]()
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
        raise ConfigError(f'"{values}" lacks a closing {open_until[-1]}')
    return parts
