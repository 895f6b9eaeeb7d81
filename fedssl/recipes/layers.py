"""A recipe is made of layers: what it begins as, then one change after the other."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

Table = Mapping[str, Any]
Layers = tuple[tuple[str, Table], ...]  # a word of the name, or "", and what it changes

_NO_SETTINGS = ("with", "note")


def merged(layers: Layers) -> dict[str, Any]:
    """An experiment's plain values."""
    values: dict[str, Any] = {}
    for i, (word, changes) in enumerate(layers):
        change(values, changes)
        for earlier, table in layers[:i]:  # what two words change only together, now that both are there
            change(values, changes.get("with", {}).get(earlier, {}))
            change(values, table.get("with", {}).get(word, {}))
    return values


def change(values: dict[str, Any], changes: Table) -> None:
    """Set what `changes` has, table by table. A table that names another choice than before begins afresh."""
    for key, new in changes.items():
        old = values.get(key)
        if key in _NO_SETTINGS:
            continue
        if isinstance(old, dict) and isinstance(new, dict) and new.get("name", old.get("name")) == old.get("name"):
            change(old, new)
        else:
            values[key] = copy.deepcopy(new)


def notes(layers: Layers) -> list[str]:
    return [str(changes["note"]) for _, changes in layers if "note" in changes]
