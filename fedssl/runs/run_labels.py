"""Label runs by the settings in which they differ: "temperature 0.2", "byol, lr 0.01"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from fedssl.runs.view_names import name_preset

Values = Mapping[str, Any]  # settings by dotted key


def varying_keys(settings: Sequence[Values]) -> list[str]:
    """Return the keys that do not have the same value everywhere."""
    keys: dict[str, None] = {}
    for values in settings:
        keys |= dict.fromkeys(values)
    return list(filter(lambda key: _differs(key, settings), keys))


def labelled_keys(varying: Sequence[str], settings: Sequence[Values]) -> list[str]:
    """Return the keys that a label needs, those that choose a class first.

    Another method or algorithm has other settings, which its name represents: they are needed only
    if they also differ between runs that have the same method or algorithm.
    """
    names = []
    others = []
    for key in varying:
        name = f"{key.partition('.')[0]}.name"
        if key.endswith(".name"):
            names.append(key)
        elif name not in varying or _differs_within(key, name, settings):
            others.append(key)
    return names + others


def _differs(key: str, settings: Sequence[Values]) -> bool:
    return any(values.get(key) != settings[0].get(key) for values in settings[1:])


def _differs_within(key: str, name: str, settings: Sequence[Values]) -> bool:
    """True if the key differs between settings that have the same `name`."""
    by_name: dict[Any, list[Values]] = {}
    for values in settings:
        by_name.setdefault(values.get(name), []).append(values)
    return any(map(partial(_differs, key), by_name.values()))


def label(values: Values, keys: Sequence[str]) -> str:
    """Return the values of some keys as text; empty if there are no keys.

    Views that are those of a preset are named: "views grey".
    """
    named = name_preset(dict.fromkeys(keys), values)
    values = {**values, **{key: name for key, name in named.items() if key not in keys}}
    keys = list(named)
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
    for other in keys:
        if other != key and other.rpartition(".")[2] == leaf:
            return key
    return leaf


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
