"""A table of one's own: one recipe with every combination of some settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from fedssl.errors import ConfigError
from fedssl.evaluate import check_probe
from fedssl.tables import Cell, Table

_CLOSING = {"[": "]", "{": "}", '"': '"', "'": "'"}


def swept(recipe: str, assignments: Sequence[str], probes: Sequence[str]) -> Table:
    """Rows are combinations, columns are probes."""
    for probe in probes:
        check_probe(probe)
    axes = [list(_axis(text)) for text in assignments]
    cells = []
    for chosen in product(*axes):
        varied = [each for each, axis in zip(chosen, axes, strict=True) if len(axis) > 1]
        row = ", ".join(varied) or ", ".join(chosen) or "as it is"
        cells += [Cell(row, probe, recipe, probe, set=chosen) for probe in probes]
    fixed = ", ".join(axis[0] for axis in axes if len(axis) == 1)
    title = recipe + (f" with {fixed}" if fixed else "")
    said = hashlib.sha256(json.dumps([recipe, list(assignments), list(probes)]).encode()).hexdigest()[:8]
    return Table(f"sweep-{Path(recipe).name.removesuffix('.toml')}-{said}", "", "Sweep", title, tuple(cells))


def _axis(text: str) -> Iterator[str]:
    """KEY=V1,V2 → KEY=V1, KEY=V2."""
    key, equals, values = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f'"{text}" is not key=value or key=value,value')
    if key.strip() == "seed":
        raise ConfigError("seeds are asked for with --seeds, not with --set")
    found = [value.strip() for value in split(values)]
    if not all(found) or len({*found}) < len(found):
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
