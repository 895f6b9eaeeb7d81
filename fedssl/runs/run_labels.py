"""Label runs by the settings in which they differ: "temperature 0.2", "byol, lr 0.01"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Values = Mapping[str, Any]  # settings by dotted key


def varying_keys(settings: Sequence[Values]) -> list[str]:
    """Return the keys that do not have the same value everywhere."""
    keys: dict[str, None] = {}
    for values in settings:
        keys |= dict.fromkeys(values)
    return [key for key in keys if _differs(key, settings)]


def labelled_keys(varying: Sequence[str], settings: Sequence[Values]) -> list[str]:
    """Return the keys that a label needs, those that choose a class first.

    Another method or algorithm has other settings, which its name stands for: they are needed only
    if they also differ between runs that have the same method or algorithm.
    """
    names = [key for key in varying if key.endswith(".name")]
    needed = list(names)
    for key in varying:
        if key in names:
            continue
        name = f"{key.partition('.')[0]}.name"
        if name not in names or _differs_within(key, name, settings):
            needed.append(key)
    return needed


def _differs(key: str, settings: Sequence[Values]) -> bool:
    return any(values.get(key) != settings[0].get(key) for values in settings[1:])


def _differs_within(key: str, name: str, settings: Sequence[Values]) -> bool:
    """True if the key differs between settings that have the same `name`."""
    by_name: dict[Any, list[Values]] = {}
    for values in settings:
        by_name.setdefault(values.get(name), []).append(values)
    return any(_differs(key, alike) for alike in by_name.values())


def label(values: Values, keys: Sequence[str]) -> str:
    """Return the values of some keys as text; empty if there are no keys."""
    words = []
    for key in keys:
        name = short_key(key, keys)
        if key.endswith(".name"):
            words.append(str(values.get(key, f"no {key.partition('.')[0]}")))
        elif key in values:
            words.append(f"{name} {_text(values[key])}")
        elif f"{key.partition('.')[0]}.name" not in keys:  # the table has the key, without a value
            words.append(f"no {name}")
    return ", ".join(words)


def short_key(key: str, keys: Sequence[str]) -> str:
    """Return the last part of a dotted key, or all of it if another key has the same last part."""
    leaf = key.rpartition(".")[2]
    same = [other for other in keys if other.rpartition(".")[2] == leaf]
    return leaf if len(same) == 1 else key


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
