"""Experiments as plain values: TOML files, `key=value` assignments, nested tables.

Imports no settings class.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from fedssl.core.errors import ConfigError
from fedssl.experiment.toml_errors import explain_toml_error

MAX_LEVELS = 20  # of nested tables and lists
MAX_TOML_BYTES = 1_000_000
MAX_DOTS = 100  # of a key


def read_text(path: Path) -> str:
    """Return the text of a file that may be an experiment; raise ConfigError if it cannot be."""
    try:
        if path.stat().st_size > MAX_TOML_BYTES:
            raise ConfigError(
                f"{path} is larger than {MAX_TOML_BYTES:,} bytes: it is not an experiment"
            )
        return path.read_text("utf-8-sig")  # some editors begin a file with a byte order mark
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"{path} cannot be read: {problem}") from None


def _most_dots(text: str) -> int:
    """Return the largest number of dots in a dotted key, or in text that looks like one."""
    bare = re.sub(r"\"[^\"\n]*\"|'[^'\n]*'|#[^\n]*", "", text)  # without strings and comments
    words = re.split(r"[=\[\]{},\n]", bare.replace(" ", "").replace("\t", ""))
    return max(word.count(".") for word in words)


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """Return the values in a TOML document; errors name it as `where`."""
    if _most_dots(text) > MAX_DOTS:  # the time of tomllib grows with their square
        raise ConfigError(f"{where} is nested too deeply")
    try:
        values = tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{where} is nested too deeply") from None
    except ValueError as problem:  # also an integer of more than 4,300 digits
        raise ConfigError(explain_toml_error(text, where, problem)) from None
    check_depth(values, where)
    return values


def check_depth(values: Any, where: str) -> None:
    """Raise ConfigError for tables and lists nested too deeply for recursive code."""
    level = [values]
    for _ in range(MAX_LEVELS):
        level = list(chain.from_iterable(map(_items, level)))
    if level:
        raise ConfigError(
            f"{where} is nested too deeply: no setting has more than {MAX_LEVELS} levels"
        )


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, list | tuple):
        return value
    return ()


def parse_assignment(text: str) -> tuple[str, Any]:
    """Return the key and the value of `key=value`, with the value in TOML or a bare word.

    None for an empty value, which removes the setting.
    """
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigError(f'"{text}" is not of the form key=value, such as rounds=10')
    if not value.strip():
        return key, None
    try:
        parsed = tomllib.loads(f"v = {value}")["v"]
    except RecursionError:
        raise ConfigError(f"the value of {key} is nested too deeply") from None
    except ValueError:  # not TOML, or an integer of more than 4,300 digits
        return key, value.strip()
    check_depth(parsed, f"the value of {key}")
    return key, parsed


def parse_assignments(texts: Iterable[str]) -> dict[str, Any]:
    """Return assignments by dotted key; `method={tau=0.9}` is the same as `method.tau=0.9`."""
    changes: dict[str, Any] = {}
    for text in texts:
        key, value = parse_assignment(text)
        changes |= flatten({key: value})
    return changes


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the dotted keys in which the plain values of two experiments differ, with both."""
    before = flatten(old)
    after = flatten(new)
    changed = {}
    for key in [*before, *after]:
        if before.get(key) != after.get(key):
            changed[key] = (before.get(key), after.get(key))
    return changed


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested tables by dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
