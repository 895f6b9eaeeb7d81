"""A recipe is a list of layers: a base, then changes that are applied in order."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

Table = Mapping[str, Any]
Layers = tuple[tuple[str, Table], ...]  # a word of the name, or "", and what it changes

_NO_SETTINGS = ("with", "note")


def merged(layers: Layers) -> dict[str, Any]:
    """Return the plain values of the experiment that layers describe."""
    values: dict[str, Any] = {}
    for i, (word, changes) in enumerate(layers):
        change(values, changes)
        # Changes that apply only if two words are combined, now that both are present.
        for earlier, table in layers[:i]:
            change(values, changes.get("with", {}).get(earlier, {}))
            change(values, table.get("with", {}).get(word, {}))
    return values


def change(values: dict[str, Any], changes: Table) -> None:
    """Set the values in `changes`, table by table; a table with another `name` is replaced."""
    for key, new in changes.items():
        if key in _NO_SETTINGS:
            continue
        old = values.get(key)
        if isinstance(old, dict) and isinstance(new, dict) and _same_choice(old, new):
            change(old, new)
        else:
            values[key] = copy.deepcopy(new)


def _same_choice(old: Table, new: Table) -> bool:
    """True if a table does not choose another `name`."""
    return bool(new.get("name", old.get("name")) == old.get("name"))


def notes(layers: Layers) -> list[str]:
    """Return the notes of all layers."""
    return [str(changes["note"]) for _, changes in layers if "note" in changes]
