"""Override settings of an experiment: dotted keys, and tables whose `name` chooses a class."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

from fedssl.algorithm import ALGORITHMS
from fedssl.core.errors import ConfigError
from fedssl.core.settings import Settings, known_keys
from fedssl.data import PARTITIONS, PUBLIC, SOURCES
from fedssl.engine.means.mean_settings import MEANS
from fedssl.experiment.plain_values import MAX_LEVELS, check_depth, flatten
from fedssl.method import METHODS, Method
from fedssl.probes.settings import ProbeSettings
from fedssl.topologies.topology import TOPOLOGIES
from fedssl.training.trainer import TrainSettings

CHOICES: dict[str, Any] = {
    "data": SOURCES,
    "partition": PARTITIONS,
    "method": METHODS,
    "algorithm": ALGORITHMS,
    "topology": TOPOLOGIES,
    "mean": MEANS,
    "public": PUBLIC,
}
OTHER_TABLES: dict[str, type[Settings]] = {"probe": ProbeSettings, "train": TrainSettings}
NO_VALUE = "none"
# For tables without a name.
DEFAULT_NAMES = {
    "partition": "iid",
    "algorithm": "fedavg",
    "topology": "star",
    "mean": "weighted",
    "public": "held-out",
}
# Tables for which the name of a preset may stand.
PRESET_TABLES = ("method.augment", "guard")
# Settings that may change when a run is resumed. They do not change how a round is computed, except
# that more rounds stretch the learning rate's schedule, which the log and the results then state;
# `guard.min_uploads` changes which rounds count.
CHANGEABLE = (
    "rounds",
    "probe",
    "data.cache",
    "data.test",
    "public.cache",
    "train.workers",
    "train.client_memory",
    "train.checkpoint_every",
    "guard.min_uploads",
)


def settings_class(table: str, name: Any) -> type[Settings]:
    """Return the settings class of a choice, e.g. that of `[method]` with `name = "byol"`."""
    if not isinstance(name, str):
        raise ConfigError(f"{table}.name must be text (got {name!r})")
    cls: type[Any] = CHOICES[table][name]
    return cls.Settings if issubclass(cls, Method) else cls


def known_choices(values: Mapping[str, Any]) -> dict[str, bool]:
    """Return the dotted names of the settings of every choice; True: a table.

    The names in `values` are those of known classes.
    """
    keys: dict[str, bool] = {}
    for table in CHOICES:
        chosen = values.get(table, {})
        if isinstance(chosen, Settings):
            keys |= known_keys(type(chosen), table)
            continue
        name = chosen
        if isinstance(chosen, Mapping):
            name = chosen.get("name", DEFAULT_NAMES.get(table))
        if isinstance(name, str):
            keys |= known_keys(settings_class(table, name), table)
    return keys


def dump(settings: Settings) -> dict[str, Any]:
    """Return settings as plain values, without those that are None."""
    return settings.model_dump(mode="json", exclude_none=True)


def full_key(key: str, value: Any) -> str:
    """Return the key that is set.

    `method=byol` is short for `method.name=byol`, `guard=strict` for `guard.preset=strict`.
    """
    if key in CHOICES and isinstance(value, str):
        return f"{key}.name"
    if key in PRESET_TABLES and isinstance(value, str):
        return f"{key}.preset"
    return key


def merge_changes(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested tables with dotted keys set.

    A table as a value is merged key by key, at every level. Choosing another `name` keeps the keys
    that the new choice has too. An assignment without a value removes a key, see `_removes`.
    """
    check_depth(changes, "a change")
    merged: dict[str, Any] = _with_preset_tables(copy.deepcopy(dict(values)))
    assignments = {}
    for key, value in flatten(changes).items():
        assignments[full_key(key, value)] = value
    for key in sorted(assignments, key=_order):
        if _removes(merged, key, assignments[key]):
            _remove(merged, key)
        else:
            _assign(merged, key, assignments[key])
    return merged


def _removes(values: Mapping[str, Any], key: str, value: Any) -> bool:
    """Return whether an assignment removes a setting, so that its default applies.

    It does without a value, and with `none`, as the reference writes it, if that is the default.
    """
    if value != NO_VALUE:
        return value is None
    table, _, leaf = key.partition(".")
    cls = OTHER_TABLES.get(table)
    if table in CHOICES:
        settings = values.get(table)
        name = settings.get("name") if isinstance(settings, Mapping) else settings
        try:
            cls = settings_class(table, name or DEFAULT_NAMES.get(table))
        except ConfigError:  # reported with the other errors of the experiment
            return False
    if cls is None:
        return False
    field = cls.model_fields.get(leaf)
    return field is not None and not field.is_required() and field.default is None


def _remove(values: dict[str, Any], key: str) -> None:
    """Remove one dotted key from nested tables, if it is there."""
    *path, leaf = key.split(".")
    table: Any = values
    for name in path:
        table = table.get(name)
        if not isinstance(table, dict):
            return
    table.pop(leaf, None)


def _with_preset_tables(values: dict[str, Any]) -> dict[str, Any]:
    """Write the name of a preset as a table, so that further keys can be set in it."""
    for key in PRESET_TABLES:
        *path, leaf = key.split(".")
        table: Any = values
        for name in path:
            table = table.get(name) if isinstance(table, dict) else None
        if isinstance(table, dict) and isinstance(table.get(leaf), str):
            table[leaf] = {"preset": table[leaf]}
    return values


def _order(key: str) -> int:
    """Return 0 for names, which decide which keys are known, 1 for presets, 2 for other keys."""
    if key.endswith(".name"):
        return 0
    return 1 if key.endswith(".preset") else 2


def _assign(values: dict[str, Any], key: str, value: Any) -> None:
    """Set one dotted key of nested tables."""
    *path, leaf = key.split(".")
    if len(path) >= MAX_LEVELS:
        raise ConfigError(
            f'"{key[:60]}..." is nested too deeply: no setting has more than {MAX_LEVELS} levels'
        )
    table = values
    for name in path:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise ConfigError(f'"{key}" cannot be set: "{name}" is a value, not a table')
    if leaf == "name" and len(path) == 1 and path[0] in CHOICES:
        _drop_other_keys(path[0], table, value)
    if leaf == "preset":
        table.clear()  # it stands for the other keys of its table
    table[leaf] = value


def _drop_other_keys(choice: str, table: dict[str, Any], name: str) -> None:
    """Drop keys that the new choice does not have, and those with the old choice's defaults."""
    new_fields = settings_class(choice, name).model_fields
    old_fields: dict[str, Any] = {}
    if "name" in table:
        old_fields = settings_class(choice, table["name"]).model_fields
    for key in table.keys() - {"name"}:
        if key not in new_fields or _is_default(old_fields.get(key), table[key]):
            del table[key]


def _is_default(field: Any, value: Any) -> bool:
    """True if a field has a default and a plain value is equal to it."""
    if field is None:
        return False
    default = field.get_default(call_default_factory=False)
    if isinstance(default, Settings):
        default = dump(default)
    return default is not None and _plain(value) == _plain(default)


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


def may_change(key: str) -> bool:
    """True if a setting may change when a run is resumed."""
    return any(key == allowed or key.startswith(allowed + ".") for allowed in CHANGEABLE)
