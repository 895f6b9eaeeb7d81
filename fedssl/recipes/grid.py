"""How a paper's file becomes recipes: a beginning, axes of words, and grids of their combinations.

    paper = "FedEMA"              # as sources name it
    cite = "Zhuang, Wen & Zhang, …"
    like = "fedu"                 # begin with that file's base and axes; may be left out

    [base]                        # the experiment that recipes begin as
    rounds = 100

    [axis.net]                    # an axis: words of names, and what each changes; "" does not show
    "" = { method.backbone = "resnet18" }
    resnet50 = { method.backbone = "resnet50" }

    [axis.data.cifar100]
    data.name = "cifar100"
    with.noniid = { partition.per_client = 20 }  # if the name has that word too
    note = "…"                    # for whoever looks at the recipe

    [axis.tau]                    # an axis of numbers: words tau0.1 and tau0.2; `set` is changed with all of them
    key = "algorithm.tau"
    values = [0.1, 0.2]

    [[grid]]                      # words in this order: fedema-cifar100-noniid, fedema-resnet50-cifar100-noniid, …
    who = ["fedbyol", "fedema"]
    net = "all"
    data = ["cifar100"]
    split = "all"

    [[grid]]                      # begin with recipes from above, not with the base: fedema-cifar100-noniid-tau0.1, …
    of = ["fedema-cifar#-noniid"]
    tau = "all"

    [aliases]                     # other names
    [tables]                      # the recipes that each table or figure compares, of whichever file: "Table 1" = […]

A grid may have an axis of its own, written as a table in place of the words; a first word, `name`, in place of the
names in `of`; and changes, `set`. In patterns * is any text, # any number, and {a,b} one of these.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any

from fedssl.recipes.layers import Layers, Table, change

_NO_AXES = ("of", "name", "set")


def expand(family: str, files: Mapping[str, Table]) -> Iterator[tuple[str, Layers]]:
    """The names of a file's recipes, and what each is made of."""
    file = files[family]
    if "grid" not in file:
        values = {key: value for key, value in file.items() if key != "opening"}
        yield family, (("", {**values, "note": file["opening"].removeprefix("# ")}),)
        return
    base, axes = _shared(family, files)
    known: dict[str, Layers] = {}
    for grid in file["grid"]:
        begun: dict[str, Layers] = {name: known[name] for name in _of(grid, known)} or {"": (("", base),)}
        chosen = [_words(axis, grid[axis], axes) for axis in grid if axis not in _NO_AXES]
        for first, words in product(begun, product(*chosen)):
            name = "-".join(filter(None, [grid.get("name", first), *(word for word, _ in words)]))
            if name in known:
                raise ValueError(f'two recipes are called "{name}", both in {family}.toml')
            known[name] = (*begun[first], ("", grid.get("set", {})), *words)
    yield from known.items()
    for name, other in file.get("aliases", {}).items():
        yield name, (*known[other], ("", {"note": f"Another name of {other}"}))


def matching(names: Iterable[str], *patterns: str) -> list[str]:
    """The names that one of the patterns fits, in their order."""
    fits = re.compile("|".join(f"(?:{_regex(pattern)})" for pattern in patterns))
    return [name for name in names if fits.fullmatch(name)]


def _regex(pattern: str) -> str:
    plain = {"*": ".*", "#": r"[0-9.]+", "{": "(?:", "}": ")", ",": "|"}
    return "".join(plain.get(letter, re.escape(letter)) for letter in pattern)


def _of(grid: Table, known: Mapping[str, Layers]) -> list[str]:
    for pattern in grid.get("of", ()):
        if not matching(known, pattern):
            raise ValueError(f'a grid is of "{pattern}", but no recipe above is')
    return matching(known, *grid["of"]) if "of" in grid else []


def _shared(family: str, files: Mapping[str, Table]) -> tuple[Table, dict[str, Table]]:
    """A file's base and axes, after those of the file it is like."""
    file = files[family]
    base, axes = _shared(file["like"], files) if "like" in file else ({}, {})
    changed: dict[str, Any] = {}
    change(changed, base)
    change(changed, file["base"])
    return changed, {**axes, **file.get("axis", {})}


def _words(axis: str, chosen: Any, axes: Mapping[str, Table]) -> list[tuple[str, Table]]:
    """The words that a grid has of an axis, each with what it changes."""
    table = chosen if isinstance(chosen, dict) else axes[axis]
    if "values" in table:
        table = {f"{axis}{value:g}": _swept(table, value) for value in table["values"]}
    return [(word, table[word]) for word in (chosen if isinstance(chosen, list) else table)]


def _swept(axis: Table, value: float) -> Table:
    changes: dict[str, Any] = {}
    change(changes, axis.get("set", {}))
    nested: Any = value
    for part in reversed(axis["key"].split(".")):
        nested = {part: nested}
    change(changes, nested)
    return changes
