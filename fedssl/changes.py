"""What an experiment chooses by name, and how its plain values are changed and compared."""

from __future__ import annotations

import copy
import json
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

import fedssl.algorithms
import fedssl.graphs
import fedssl.methods  # noqa: F401 - all register what they hold
from fedssl.algorithm import ALGORITHMS
from fedssl.data import PARTITIONS, PUBLIC, SOURCES
from fedssl.errors import ConfigError
from fedssl.method import METHODS, Method
from fedssl.settings import Settings
from fedssl.topology import TOPOLOGIES

CHOICES: dict[str, Any] = {
    "data": SOURCES,
    "partition": PARTITIONS,
    "method": METHODS,
    "algorithm": ALGORITHMS,
    "topology": TOPOLOGIES,
    "public": PUBLIC,
}
# Where a table names none.
USUAL = {"partition": "iid", "algorithm": "fedavg", "topology": "star", "public": "held-out"}
# Settings that may change when a run is resumed. They do not change how a round is computed, except that more rounds
# stretch the learning rate's schedule, which the log and the results then state; `guard.min_uploads` changes which
# rounds count.
HARMLESS = (
    "rounds",
    "probe",
    "data.cache",
    "public.cache",
    "train.workers",
    "train.memory",
    "train.checkpoint_every",
    "guard.min_uploads",
)
MOST_LEVELS = 20  # of nested tables and lists


def settings_class(table: str, name: Any) -> type[Settings]:
    if not isinstance(name, str):
        raise ConfigError(f"{table}.name is text (got {name!r})")
    cls: type[Any] = CHOICES[table][name]
    return cls.Settings if issubclass(cls, Method) else cls


def dump(settings: Settings) -> dict[str, Any]:
    return settings.model_dump(mode="json", exclude_none=True)


def parse_assignment(text: str) -> tuple[str, Any]:
    """`key=value` with the value in TOML; a bare word is a string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f'"{text}" is not key=value')
    try:
        parsed = tomllib.loads(f"v = {value}")["v"]
    except RecursionError:
        raise ConfigError(f"the value of {key.strip()} is nested too deeply") from None
    except ValueError:  # not TOML, or an integer of more than 4,300 digits
        return key.strip(), value.strip()
    check_depth(parsed, f"the value of {key.strip()}")
    return key.strip(), parsed


def check_depth(values: Any, where: str) -> None:
    """Refuse nested tables and lists that recursive code could not walk."""
    level = [values]
    for _ in range(MOST_LEVELS):
        level = [item for value in level for item in _items(value)]
    if level:
        raise ConfigError(f"{where} is nested too deeply: no setting has more than {MOST_LEVELS} levels")


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def parse_assignments(texts: Iterable[str]) -> dict[str, Any]:
    """Return several assignments as dotted keys; `method={tau=0.9}` is the same as `method.tau=0.9`."""
    changes: dict[str, Any] = {}
    for text in texts:
        key, value = parse_assignment(text)
        changes |= flat({key: value})
    return changes


def full_key(key: str, value: Any) -> str:
    """`method=byol` is short for `method.name=byol`, and keeps the rest of the table."""
    return f"{key}.name" if key in CHOICES and isinstance(value, str) else key


def merge_changes(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested tables with dotted keys set. A table as a value is merged key by key, at every level.

    Choosing another `name` keeps the keys that the new choice has too.
    """
    check_depth(changes, "a change")
    merged: dict[str, Any] = copy.deepcopy(dict(values))
    changes = {full_key(key, value): value for key, value in flat(changes).items()}
    for key in sorted(changes, key=lambda key: not key.endswith(".name")):  # names first: they decide what is known
        *path, leaf = key.split(".")
        if len(path) >= MOST_LEVELS:
            raise ConfigError(f'"{key[:60]}..." is nested too deeply: no setting has more than {MOST_LEVELS} levels')
        table = merged
        for part in path:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise ConfigError(f'"{key}": "{part}" is not a table')
        if leaf == "name" and path and path[0] in CHOICES and len(path) == 1:
            _keep_what_fits(path[0], table, changes[key])
        table[leaf] = changes[key]
    return merged


def _keep_what_fits(choice: str, table: dict[str, Any], name: str) -> None:
    """Keep the keys that the new choice knows too, but not those that only repeat the old choice's defaults."""
    known = settings_class(choice, name).model_fields
    old = settings_class(choice, table["name"]).model_fields if "name" in table else {}
    for key in [key for key in table if key != "name"]:
        default = old[key].get_default(call_default_factory=False) if key in old else None
        if isinstance(default, Settings):
            default = dump(default)
        if key not in known or (default is not None and _plain(table[key]) == _plain(default)):
            del table[key]


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Dotted keys in which two experiments' plain values differ, with both values."""
    before, after = flat(old), flat(new)
    keys = dict.fromkeys([*before, *after])
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}


def harmless(key: str) -> bool:
    return any(key == allowed or key.startswith(allowed + ".") for allowed in HARMLESS)


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables by dotted keys."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found
