"""Published tables and figures: the recipe of each cell, its probe and the published figure.

This module reads plain data and does not import experiments. There is one TOML file per paper; the
tables in fedema.toml are named fedema-1, fedema-2, …

    paper = "FedEMA"
    note = "…"                    # optional; added to all its tables that can be reproduced

    [fedema-4]
    place = "Table 4"             # as recipes cite it; several tables may be parts of one figure
    title = "…"
    note = "…"                    # optional; printed below the figures
    probe = "semi"                # a probe of fedssl evaluate, or one of LOGGED
    with = ["protocol=fedema"]    # settings of the probe, as in fedssl evaluate --set
    set = ["data.leave_out={labels}"]     # changes of every recipe, as in fedssl run --set
    on = "stl10"                  # optional; another data set to measure on
    cannot = "…"                  # optional; why the table cannot be reproduced here
    columns = { data = ["cifar10", "cifar100"], labels = [0.01, 0.1] }    # product: four columns
    rows = [                      # name; recipe, with the column's words; a figure for each column
      ["FedBYOL", "fedbyol-{data}-noniid", "70.48±0.30 76.95±0.46 30.21±0.40 47.07±0.14"],
      ["FedCA", "fedca-resnet50-{data}-noniid", "…", { probe = "collaborative" }],
    ]

An axis of columns may also give its headings, { B = { "B = 64" = "-batch64", "B = 128" = "" } },
and several words for each, { pair = { "A to B" = { from = "a", onto = "b" } } }. In a row, "?" is a
cell whose figure cannot be read from the paper's text, and "-" is no cell; in a row without
figures, all cells are "?". The words of a column are also filled into `set`, `with` and `on`. The
table at the end of a row overrides the settings of the whole table; its `place` may be another
table of the paper.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from fedssl.core.errors import ConfigError
from fedssl.core.suggestions import suggest
from fedssl.experiment.recipes import toml_texts

__all__ = ["LOGGED", "Cell", "Table", "tables"]

LOGGED = ("rounds-to", "divergence")  # figures that are read from the rounds log, not from a probe
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
SCALES = {"paper": "", "short": "-short", "mini": "-mini"}  # scale → suffix of the recipes' names
TABLES_DIR = Path("runs/reproduce")  # default of --dir

_OPTIONS = ("place", "probe", "with", "set", "on", "cannot")  # keys that rows may override


@dataclass(frozen=True)
class Cell:
    """One figure: the recipe to train, the probe that measures it, and the published value."""

    row: str
    column: str
    recipe: str
    probe: str
    settings: tuple[str, ...] = ()  # of the probe: KEY=VALUE
    set: tuple[str, ...] = ()  # changes of the recipe: KEY=VALUE
    on: str | None = None
    published: str | None = None  # as printed: "79.44±0.99"
    cannot: str | None = None
    place: str = ""  # where it is printed: "Table 3"

    @property
    def value(self) -> float | None:
        """The published figure without its deviation; None if not published."""
        if self.published is None:
            return None
        return float(self.published.partition("±")[0])


@dataclass(frozen=True)
class Table:
    """A published table, or a sweep, as a list of cells."""

    name: str
    paper: str
    place: str
    title: str
    cells: tuple[Cell, ...]
    note: str = ""


@cache
def tables() -> Mapping[str, Table]:
    """Return all published tables by name, paper by paper."""
    published: dict[str, Table] = {}
    for text in toml_texts("fedssl.paper_tables", ORDER).values():
        published |= read(tomllib.loads(text))
    return published


def find_table(name: str) -> Table:
    """Return a published table; raise ConfigError with similar names if it does not exist."""
    known = tables()
    if name in known:
        return known[name]
    parts = [other for other in known if other.startswith(name)]
    if parts:
        hint = f"; there are {', '.join(parts)}"
    else:
        hint = suggest(name, known) or "; fedssl reproduce --list prints all of them"
    raise ConfigError(f'there is no table "{name}"{hint}')


def read(file: Mapping[str, Any]) -> dict[str, Table]:
    """Return the tables of one parsed file by name."""
    paper = file["paper"]
    note = file.get("note", "")
    published = {}
    for name, options in file.items():
        if name not in ("paper", "note"):
            published[name] = _read_table(name, paper, note, options)
    return published


def _read_table(name: str, paper: str, paper_note: str, options: Mapping[str, Any]) -> Table:
    unknown = set(options) - {"title", "note", "columns", "rows", *_OPTIONS}
    if unknown:
        raise ValueError(f"table {name} has unknown keys: {', '.join(sorted(unknown))}")
    cells: list[Cell] = []
    for row in options["rows"]:
        cells += _read_row(name, row, options)
    if len({(cell.row, cell.column) for cell in cells}) < len(cells):
        raise ValueError(f"table {name} has two cells with the same row and column")
    notes = [options.get("note", "")]
    if any(cell.cannot is None for cell in cells):
        notes.append(paper_note)
    return Table(
        name,
        paper,
        options["place"],
        title=options["title"],
        cells=tuple(cells),
        note=" ".join(filter(None, notes)),
    )


def _read_row(table: str, row: Sequence[Any], options: Mapping[str, Any]) -> Iterator[Cell]:
    own: Mapping[str, Any] = {}
    if isinstance(row[-1], Mapping):
        own = row[-1]
        row = row[:-1]
    label, recipe, *rest = row
    columns = list(_read_columns(options["columns"]))
    figures = rest[0].split() if rest else ["?"] * len(columns)
    if len(figures) != len(columns):
        raise ValueError(
            f"row {label} of table {table} has {len(figures)} figures for {len(columns)} columns"
        )
    unknown = set(own) - set(_OPTIONS)
    if unknown:
        raise ValueError(
            f"row {label} of table {table} has unknown keys: {', '.join(sorted(unknown))}; "
            f"known: {', '.join(_OPTIONS)}"
        )
    merged = {**options, **own}
    for (heading, words), figure in zip(columns, figures, strict=True):
        if figure == "-":
            continue
        on = merged.get("on")
        yield Cell(
            label,
            heading,
            recipe.format(**words),
            probe=merged["probe"],
            settings=_fill(merged.get("with", ()), words),
            set=_fill(merged.get("set", ()), words),
            on=None if on is None else on.format(**words),
            published=None if figure == "?" else figure,
            cannot=merged.get("cannot"),
            place=merged["place"],
        )


def _fill(templates: Sequence[str], words: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(template.format(**words) for template in templates)


def _read_columns(axes: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the heading and the words of each column: the product of the axes, the last fastest."""
    choices = [_headings(axis, words).items() for axis, words in axes.items()]
    for chosen in product(*choices):
        headings = []
        words: dict[str, str] = {}
        for axis, (heading, word) in zip(axes, chosen, strict=True):
            headings.append(heading)
            words |= word if isinstance(word, Mapping) else {axis: word}
        yield ", ".join(headings), words


def _headings(axis: str, words: Any) -> Mapping[str, Any]:
    """Return the word of an axis for each heading, or several words by name."""
    if isinstance(words, Mapping):
        return words
    by_heading = {}
    for word in words:
        by_heading[_heading(axis, word)] = _as_text(word)
    return by_heading


def _heading(axis: str, word: Any) -> str:
    if isinstance(word, str):
        return HEADINGS.get(word, word)
    if axis == "labels":
        return f"{100 * word:g}% of labels"
    return f"{axis} {word:g}"


def _as_text(word: Any) -> str:
    if isinstance(word, str):
        return word
    return f"{word:g}"
