"""Expand the file of a paper into recipes: a base, axes of words, and grids of their combinations.

    paper = "FedEMA"              # as sources name it
    cite = "Zhuang, Wen & Zhang, …"
    like = "fedu"                 # start from the base and axes of that file; optional

    [base]                        # the experiment that recipes start from
    rounds = 100

    [axis.net]                    # an axis: words of names, and their changes; "" adds no word
    "" = { method.backbone = "resnet18" }
    resnet50 = { method.backbone = "resnet50" }

    [axis.data.cifar100]
    data.name = "cifar100"
    with.noniid = { partition.per_client = 20 }  # if the name has that word too
    note = "…"                    # shown with the recipe

    [axis.tau]                    # an axis of numbers: words tau0.1 and tau0.2; `set` adds changes
    key = "algorithm.tau"
    values = [0.1, 0.2]

    # Words in this order: fedema-cifar100-noniid, fedema-resnet50-cifar100-noniid, …
    [[grid]]
    who = ["fedbyol", "fedema"]
    net = "all"
    data = ["cifar100"]
    split = "all"

    # Start from recipes above instead of the base: fedema-cifar100-noniid-tau0.1, …
    [[grid]]
    of = ["fedema-cifar#-noniid"]
    tau = "all"

    [aliases]                     # other names
    [tables]                      # recipes of any file in each table or figure: "Table 1" = […]

A grid may define an axis inline, as a table in place of the words; a first word, `name`, in place
of the names in `of`; and changes, `set`. In patterns * is any text, # any number, and {a,b} one of
these.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any

Table = Mapping[str, Any]
Layers = tuple[tuple[str, Table], ...]  # a word of the name, or "", and what it changes

_NO_SETTINGS = ("with", "note")
_NO_AXES = ("of", "name", "set")


def expand(family: str, files: Mapping[str, Table]) -> Iterator[tuple[str, Layers]]:
    """Yield the name and the layers of each recipe in a file."""
    file = files[family]
    if "grid" not in file:
        values = dict(file)
        values["note"] = values.pop("opening").removeprefix("# ")
        yield family, (("", values),)
        return
    base, axes = _base_and_axes(family, files)
    known: dict[str, Layers] = {}
    for grid in file["grid"]:
        for name, layers in _combinations(grid, base, axes, known):
            if name in known:
                raise ValueError(f'two recipes are called "{name}", both in {family}.toml')
            known[name] = layers
    yield from known.items()
    for name, other in file.get("aliases", {}).items():
        yield name, (*known[other], ("", {"note": f"Another name of {other}"}))


def _combinations(
    grid: Table, base: Table, axes: Mapping[str, Table], known: Mapping[str, Layers]
) -> Iterator[tuple[str, Layers]]:
    """Yield the name and the layers of each combination in a grid."""
    starts: dict[str, Layers] = {name: known[name] for name in _start_names(grid, known)}
    if not starts:
        starts = {"": (("", base),)}
    choices = [_words(axis, grid[axis], axes) for axis in grid if axis not in _NO_AXES]
    for start, words in product(starts, product(*choices)):
        parts = [grid.get("name", start)]
        parts += [word for word, _ in words]
        name = "-".join(filter(None, parts))
        yield name, (*starts[start], ("", grid.get("set", {})), *words)


def matching(names: Iterable[str], *patterns: str) -> list[str]:
    """Return the names that match one of the patterns, in their order."""
    any_pattern = re.compile("|".join(f"(?:{_regex(pattern)})" for pattern in patterns))
    return [name for name in names if any_pattern.fullmatch(name)]


def _regex(pattern: str) -> str:
    special = {"*": ".*", "#": r"[0-9.]+", "{": "(?:", "}": ")", ",": "|"}
    return "".join(special.get(letter, re.escape(letter)) for letter in pattern)


def _start_names(grid: Table, known: Mapping[str, Layers]) -> list[str]:
    """Return the names of the recipes that a grid starts from; empty if it starts from the base."""
    if "of" not in grid:
        return []
    for pattern in grid["of"]:
        if not matching(known, pattern):
            raise ValueError(
                f'a grid starts from "{pattern}", but no recipe above it has that name'
            )
    return matching(known, *grid["of"])


def _base_and_axes(family: str, files: Mapping[str, Table]) -> tuple[Table, dict[str, Table]]:
    """Return the base and the axes of a file, merged into those of the file in `like`."""
    file = files[family]
    base: dict[str, Any] = {}
    axes: dict[str, Table] = {}
    if "like" in file:
        like_base, axes = _base_and_axes(file["like"], files)
        change(base, like_base)
    change(base, file["base"])
    return base, {**axes, **file.get("axis", {})}


def _words(axis: str, chosen: Any, axes: Mapping[str, Table]) -> list[tuple[str, Table]]:
    """Return the words that a grid uses of an axis, each with its changes."""
    if isinstance(chosen, dict):  # an axis defined in the grid
        table: Table = chosen
    else:
        table = axes[axis]
    if "values" in table:
        table = {f"{axis}{value:g}": _numeric_change(table, value) for value in table["values"]}
    if isinstance(chosen, list):
        return [(word, table[word]) for word in chosen]
    return list(table.items())


def _numeric_change(axis: Table, value: float) -> Table:
    """Return the changes of one value on an axis of numbers."""
    changes: dict[str, Any] = {}
    change(changes, axis.get("set", {}))
    nested: Any = value
    for part in reversed(axis["key"].split(".")):
        nested = {part: nested}
    change(changes, nested)
    return changes


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
