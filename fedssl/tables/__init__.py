"""Every published table and figure by name: which recipe each cell trains, how it is measured, what was published.

Plain data, which knows nothing of experiments. One TOML file per paper; the tables of fedema.toml are fedema-1, …

    paper = "FedEMA"
    note = "…"                    # of all its tables that can be had; may be left out

    [fedema-4]
    place = "Table 4"             # as recipes cite it; several tables may be parts of one figure
    title = "…"
    note = "…"                    # what is to be known beside the figures; may be left out
    probe = "semi"                # what measures: a probe of fedssl evaluate, or one of LOGGED
    with = ["protocol=fedema"]    # its settings, as --set of fedssl evaluate has them
    set = ["data.leave_out={labels}"]                # changes of every recipe, as --set of fedssl run has them
    on = "stl10"                  # another data set to measure on; may be left out
    cannot = "…"                  # why nobody can reproduce it here; may be left out
    columns = { data = ["cifar10", "cifar100"], labels = [0.01, 0.1] }      # their combinations: four columns
    rows = [                      # name; recipe, with the column's words; a figure for each column
      ["FedBYOL", "fedbyol-{data}-noniid", "70.48±0.30 76.95±0.46 30.21±0.40 47.07±0.14"],
      ["FedCA", "fedca-resnet50-{data}-noniid", "…", { probe = "collaborative" }],
    ]

An axis of columns may also say its headings, { B = { "B = 64" = "-batch64", "B = 128" = "" } }, and have several words
for each, { pair = { "A to B" = { from = "a", onto = "b" } } }. In a row "?" is a cell whose figure cannot be read from
the paper's text, "-" is no cell, and a row without figures has only the former. Words of columns go into `set`, `with`
and `on` too. What a row says in its last place counts more than what the table says; its `place` may be another of the
paper's tables.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import product
from typing import Any

__all__ = ["LOGGED", "Cell", "Table", "tables"]

LOGGED = ("rounds-to", "divergence")  # what is read off the rounds log, beside the probes
ORDER = ("fedema", "fedu", "fedca", "ccl", "decssl")  # of the list; other files follow
HEADINGS = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "fmnist": "Fashion-MNIST",
    "miniimagenet": "Mini-ImageNet",
    "iid": "IID",
    "noniid": "non-IID",
    "noniid1": "non-IID 1",
    "noniid2": "non-IID 2",
    "cnn5": "5-layer CNN",
    "resnet50": "ResNet-50",
}
_MAY_SAY = ("place", "probe", "with", "set", "on", "cannot")  # tables and rows alike


@dataclass(frozen=True)
class Cell:
    """One figure: what is trained, what measures it, and what was published."""

    row: str
    column: str
    recipe: str
    probe: str
    settings: tuple[str, ...] = ()  # of the probe: KEY=VALUE
    set: tuple[str, ...] = ()  # changes of the recipe: KEY=VALUE
    on: str | None = None
    published: str | None = None  # as printed: "79.44±0.99"
    cannot: str | None = None
    place: str = ""  # where that is: "Table 3"

    @property
    def value(self) -> float | None:
        """The published figure."""
        return None if self.published is None else float(self.published.partition("±")[0])


@dataclass(frozen=True)
class Table:
    name: str
    paper: str
    place: str
    title: str
    cells: tuple[Cell, ...]
    note: str = ""

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(cell.row for cell in self.cells))

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(cell.column for cell in self.cells))


@cache
def tables() -> Mapping[str, Table]:
    """All of them by name, paper by paper."""
    found: dict[str, Table] = {}
    files = {file.name.removesuffix(".toml"): file for file in resources.files("fedssl.tables").iterdir()}
    known = [name for name in files if files[name].name.endswith(".toml")]
    for family in sorted(known, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name)):
        found |= read(tomllib.loads(files[family].read_text("utf-8")))
    return found


def read(file: Mapping[str, Any]) -> dict[str, Table]:
    """The tables in a file."""
    paper, note = file["paper"], file.get("note", "")
    return {name: _table(name, paper, note, said) for name, said in file.items() if name not in ("paper", "note")}


def _table(name: str, paper: str, note: str, said: Mapping[str, Any]) -> Table:
    surplus = set(said) - {"title", "note", "columns", "rows", *_MAY_SAY}
    if surplus:
        raise ValueError(f"{name}: unknown {', '.join(sorted(surplus))}")
    cells = tuple(cell for row in said["rows"] for cell in _row(name, row, said))
    if len({(cell.row, cell.column) for cell in cells}) < len(cells):
        raise ValueError(f"{name}: two rows of one name")
    notes = [said.get("note", ""), note if any(cell.cannot is None for cell in cells) else ""]
    return Table(name, paper, said["place"], said["title"], cells, " ".join(filter(None, notes)))


def _row(table: str, row: list[Any], said: Mapping[str, Any]) -> Iterator[Cell]:
    own = row[-1] if isinstance(row[-1], Mapping) else {}
    label, recipe, *rest = [part for part in row if not isinstance(part, Mapping)]
    how = {key: said[key] for key in _MAY_SAY if key in said} | dict(own)
    columns = list(_columns(said["columns"]))
    figures = rest[0].split() if rest else ["?"] * len(columns)
    if len(figures) != len(columns) or set(own) - set(_MAY_SAY):
        raise ValueError(f"{table}, {label}: {len(columns)} figures are wanted, and after them only {_MAY_SAY}")
    for (heading, words), figure in zip(columns, figures, strict=True):
        if figure != "-":
            yield Cell(
                label,
                heading,
                recipe.format(**words),
                how["probe"],
                tuple(each.format(**words) for each in how.get("with", ())),
                tuple(each.format(**words) for each in how.get("set", ())),
                how["on"].format(**words) if "on" in how else None,
                None if figure == "?" else figure,
                how.get("cannot"),
                how["place"],
            )


def _columns(axes: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, str]]]:
    """Heading and words of each column: all combinations of the axes' words, the last axis changing fastest."""
    for chosen in product(*(_headings(axis, words).items() for axis, words in axes.items())):
        words: dict[str, str] = {}
        for axis, (_, word) in zip(axes, chosen, strict=True):
            words |= word if isinstance(word, Mapping) else {axis: word}
        yield ", ".join(heading for heading, _ in chosen), words


def _headings(axis: str, words: Any) -> Mapping[str, Any]:
    """Heading → word of an axis, or several words by name."""
    if isinstance(words, Mapping):
        return words
    return {_heading(axis, word): word if isinstance(word, str) else f"{word:g}" for word in words}


def _heading(axis: str, word: Any) -> str:
    if isinstance(word, str):
        return HEADINGS.get(word, word)
    return f"{100 * word:g}% of labels" if axis == "labels" else f"{axis} {word:g}"
