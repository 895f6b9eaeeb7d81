"""Every published setting by name, as plain data that does not depend on settings classes.

One TOML file per paper defines what its recipes share and in what they differ: see grid.py. A file
without grids is one experiment, named after the file and described by its first line.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from typing import Any

from fedssl.experiment.recipes.grid import Layers, Table, expand, matching, merged, notes

__all__ = ["VARIANTS", "Recipe", "families", "matching", "recipes", "toml_texts"]

# NAME-short and NAME-mini exist for any recipe: fedssl/experiment/variants.py
VARIANTS = ("short", "mini")
ORDER = ("demo", "fedema", "fedu", "fedca", "ccl", "decssl")  # of the list; other files follow


@dataclass(frozen=True)
class Recipe:
    """One training setting."""

    name: str
    family: str  # the name of its file
    layers: Layers

    @cached_property
    def values(self) -> dict[str, Any]:
        """The plain values of the experiment, without defaults."""
        return merged(self.layers)

    @property
    def about(self) -> str:
        """A summary of the training, followed by the notes in the files."""
        return ". ".join([summary(self.values), *notes(self.layers)])

    @property
    def places(self) -> list[str]:
        """Where it is published, as a list: "FedU, Table 1", "FedU, Table 2", "FedEMA, Table 5"."""
        places = []
        for paper, tables in _cited()[self.name].items():
            for table in tables:
                places.append(f"{paper}, {table}")
        return places

    @property
    def source(self) -> str:
        """Where it is published, as text: "FedU, Tables 1 and 2; FedEMA, Table 5"."""
        papers = []
        for paper, tables in _cited()[self.name].items():
            if tables:
                papers.append(f"{paper}, {', '.join(_joined(tables))}")
        return "; ".join(papers)


@cache
def recipes() -> Mapping[str, Recipe]:
    """Return all recipes by name, in the order of their files."""
    by_name: dict[str, Recipe] = {}
    variant_endings = tuple(f"-{variant}" for variant in VARIANTS)
    for family in _files():
        for name, layers in expand(family, _files()):
            if name in by_name:
                raise ValueError(f'two recipes are called "{name}"; {family}.toml has the second')
            if name.endswith(variant_endings):
                raise ValueError(f'recipe "{name}" is named like a variant: choose another ending')
            by_name[name] = Recipe(name, family, layers)
    return by_name


def families() -> dict[str, str]:
    """Return the paper of each recipe file, by the name of the file; "" without a paper."""
    papers = {}
    for family, file in _files().items():
        papers[family] = ""
        if "cite" in file:
            papers[family] = f"{file['paper']}: {file['cite']}"
    return papers


def summary(values: Table) -> str:
    """Return one line on an experiment.

    "byol × fedema, resnet18, cifar10, classes 2, 5 clients, 100 rounds of 5 epochs"
    """
    names = []
    for table in ("method", "algorithm", "topology"):
        if table in values:
            names.append(values[table]["name"])
    data = values["data"]
    epochs = values.get("train", {}).get("epochs", 1)
    plural = "s" if epochs > 1 else ""
    words = [
        " × ".join(names),
        values["method"].get("backbone", ""),
        data.get("path", data["name"]),
        _partition_words(values.get("partition", {"name": "iid"})),
    ]
    if values.get("clients"):
        words.append(f"{values['clients']} clients")
    words.append(f"{values.get('rounds', 100)} rounds of {epochs} epoch{plural}")
    return ", ".join(filter(None, words))


def _partition_words(partition: Table) -> str:
    """Return the name of a partition and its numbers: "classes 2"."""
    words: str = partition["name"]
    for value in partition.values():
        if type(value) in (int, float):  # not bool
            words += f" {value:g}"
    return words


@cache
def _files() -> dict[str, Table]:
    """Return the contents of the recipe files by name; `opening` is the first line of a file."""
    files: dict[str, Table] = {}
    for name, text in toml_texts("fedssl.experiment.recipes", ORDER).items():
        opening = text.partition("\n")[0]
        files[name] = {"opening": opening, **tomllib.loads(text)}
    return files


def toml_texts(package: str, order: Sequence[str]) -> dict[str, str]:
    """Return the TOML files of a package by name: those in `order` first, others sorted."""
    texts = {}
    for file in resources.files(package).iterdir():
        if file.name.endswith(".toml"):
            texts[file.name.removesuffix(".toml")] = file.read_text("utf-8")
    names = [*order, *sorted(texts.keys() - set(order))]
    return {name: texts[name] for name in names}


@cache
def _cited() -> dict[str, dict[str, list[str]]]:
    """Return recipe → paper → tables and figures.

    Any paper's file may cite any recipe; a recipe's own paper comes first.
    """
    files = _files()
    names = list(recipes())
    cited = {}
    for name, recipe in recipes().items():
        own_paper = files[recipe.family].get("paper", "")
        cited[name] = {own_paper: list[str]()}
    for family, file in files.items():
        for place, patterns in file.get("tables", {}).items():
            for pattern in patterns:
                if not matching(names, pattern):
                    raise ValueError(f'{family}.toml, {place}: there is no recipe "{pattern}"')
            for name in matching(names, *patterns):
                cited[name].setdefault(file["paper"], []).append(place)
        for name, other in file.get("aliases", {}).items():
            cited[name] = cited[other]
    return cited


def _joined(places: list[str]) -> Iterator[str]:
    """Group ["Table 1", "Table 2", "Figure 5"] as "Tables 1 and 2", "Figure 5"."""
    numbers: dict[str, list[str]] = {}
    for place in places:
        noun, number, *_ = place.split()
        numbers.setdefault(noun, []).append(number)
    for noun, (*others, last) in numbers.items():
        if others:
            yield f"{noun}s {', '.join(others)} and {last}"
        else:
            yield f"{noun} {last}"
