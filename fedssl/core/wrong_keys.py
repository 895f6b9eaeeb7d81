"""The error for unknown and missing keys of settings: all of them at once, with suggestions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedssl.core.errors import ConfigError
from fedssl.core.suggestions import closest

MAX_LISTED = 20  # unknown keys
# Names of settings in other programs, which are not similar to the names here.
SYNONYMS = {
    "learning_rate": "lr",
    "batch_size": "batch",
    "num_clients": "clients",
    "num_rounds": "rounds",
    "image_size": "size",
    "augmentation": "augment",
    "augmentations": "augment",
}


class WrongKey(NamedTuple):
    """A key that is unknown or missing."""

    key: str  # dotted
    missing: bool
    is_table: bool
    siblings: Mapping[str, bool]  # the known keys of its table; True: a table


class WrongKeysError(ConfigError, ValueError):
    """Keys are unknown or missing.

    It is a ValueError so that pydantic collects the errors of all tables of an experiment.
    """

    def __init__(
        self, wrong: Sequence[WrongKey], elsewhere: Mapping[str, bool] | None = None
    ) -> None:
        self.wrong = tuple(wrong)
        super().__init__(_report(wrong, elsewhere or {}))


def _report(wrong: Sequence[WrongKey], elsewhere: Mapping[str, bool]) -> str:
    """Return one line for one key; for several keys, a heading and one line for each.

    Of very many unknown keys, only the first are listed.
    """
    suggested: set[str] = set()
    lines = []
    unknown = [key for key in wrong if not key.missing]
    listed = MAX_LISTED
    if len(unknown) == MAX_LISTED + 1:
        listed += 1
    for key in unknown[:listed]:
        candidates = _candidates(key, elsewhere)
        suggested.update(candidates)
        lines.append(_describe_unknown(key, candidates, elsewhere))
    more = len(unknown[listed:])
    for missing in wrong:
        if missing.missing and missing.key not in suggested:  # else it is a misspelt one
            name = _written(missing.key, missing.is_table)
            lines.append(f"missing {name}, which has no default")
    if len(lines) + more == 1:
        return lines[0]
    heading = f"{len(lines) + more:,} settings are unknown or missing:"
    if more:
        lines.append(f"and {more:,} more unknown keys")
    return "\n  ".join([heading, *lines])


def _candidates(unknown: WrongKey, elsewhere: Mapping[str, bool]) -> list[str]:
    """Return known keys that may be meant: of the same name elsewhere, or else of a similar name.

    Or of the name that a setting of other programs has here. Similar names in the same table come
    before those in other tables.
    """
    name = _leaf(unknown.key)
    equal = _named(name, elsewhere)
    if equal:
        return equal
    if name in SYNONYMS:
        meant = SYNONYMS[name]
        return _named(meant, unknown.siblings) or _named(meant, elsewhere)
    for known in (unknown.siblings, elsewhere):
        similar = closest(name, map(_leaf, known))
        if similar is not None:
            return _named(similar, known)
    return []


def _named(name: str, known: Mapping[str, bool]) -> list[str]:
    return list(filter(lambda key: _leaf(key) == name, known))


def _leaf(key: str) -> str:
    return key.rpartition(".")[2]


def _describe_unknown(
    unknown: WrongKey, candidates: Sequence[str], elsewhere: Mapping[str, bool]
) -> str:
    known = {**elsewhere, **unknown.siblings}
    text = f"unknown {_written(unknown.key, unknown.is_table)}"
    if candidates:
        names = []
        for key in candidates:
            name = _quoted(key, known[key])
            if "." in unknown.key and "." not in key:
                name += " above the first table"
            names.append(name)
        return f"{text}, did you mean {' or '.join(names)}?"
    listed = []
    for key, is_table in unknown.siblings.items():
        if is_table or not unknown.is_table:
            listed.append(_leaf(key))
    if listed:
        text += f"; known: {', '.join(listed)}"
    return text


def _written(key: str, is_table: bool) -> str:
    noun = "table" if is_table else "key"
    return f"{noun} {_quoted(key, is_table)}"


def _quoted(key: str, is_table: bool) -> str:
    return f"[{key}]" if is_table else f'"{key}"'
