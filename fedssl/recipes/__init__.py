"""Every published setting by name: plain data, which knows nothing of experiments.

One TOML file per paper says what its recipes share and in what they differ: see grid.py. A file without grids is one
experiment, named after the file and described by its first line.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from typing import Any

from fedssl.recipes.grid import expand, matching
from fedssl.recipes.layers import Layers, Table, merged, notes

__all__ = ["VARIANTS", "Recipe", "families", "matching", "recipes"]

VARIANTS = ("short", "mini")  # NAME-short and NAME-mini are made of any recipe: fedssl/variants.py
ORDER = ("demo", "fedema", "fedu", "fedca", "ccl", "decssl")  # of the list; other files follow


@dataclass(frozen=True)
class Recipe:
    """One training setting."""

    name: str
    family: str  # the file that has it
    layers: Layers

    @cached_property
    def values(self) -> dict[str, Any]:
        """An experiment's plain values, without its defaults."""
        return merged(self.layers)

    @property
    def about(self) -> str:
        """What is trained, on what and for how long; and what the files say of it."""
        return ". ".join([summary(self.values), *notes(self.layers)])

    @property
    def places(self) -> list[str]:
        """Where it is published, one by one: "FedU, Table 1", "FedU, Table 2", "FedEMA, Table 5"."""
        return [f"{paper}, {place}" for paper, places in _cited()[self.name].items() for place in places]

    @property
    def source(self) -> str:
        """Where it is published: "FedU, Tables 1 and 2; FedEMA, Table 5"."""
        return "; ".join(f"{paper}, {', '.join(_joined(p))}" for paper, p in _cited()[self.name].items() if p)


@cache
def recipes() -> Mapping[str, Recipe]:
    """All of them by name, paper by paper."""
    found: dict[str, Recipe] = {}
    for family in _files():
        for name, layers in expand(family, _files()):
            if name in found:
                raise ValueError(f'two recipes are called "{name}"; {family}.toml has the second')
            if name.endswith(tuple(f"-{variant}" for variant in VARIANTS)):
                raise ValueError(f'"{name}" is the name of a variant')
            found[name] = Recipe(name, family, layers)
    return found


def families() -> dict[str, str]:
    """The files, and the paper that each is from."""
    return {family: f"{file['paper']}: {file['cite']}" if "cite" in file else "" for family, file in _files().items()}


def summary(values: Table) -> str:
    """One line for a person: "byol × fedema, resnet18, cifar10, classes 2, 5 clients, 100 rounds of 5 epochs"."""
    method, data, partition = values["method"], values["data"], values.get("partition", {"name": "iid"})
    chosen = [values[table]["name"] for table in ("method", "algorithm", "topology") if table in values]
    numbers = [f" {value:g}" for value in partition.values() if type(value) in (int, float)]
    epochs = values.get("train", {}).get("epochs", 1)
    words = [
        " × ".join(chosen),
        method.get("backbone", ""),
        data.get("path", data["name"]),
        partition["name"] + "".join(numbers),
        f"{values['clients']} clients" if values.get("clients") else "",
        f"{values.get('rounds', 100)} rounds of {epochs} epoch{'s' * (epochs > 1)}",
    ]
    return ", ".join(filter(None, words))


@cache
def _files() -> dict[str, Table]:
    found = [file for file in resources.files("fedssl.recipes").iterdir() if file.name.endswith(".toml")]
    texts = {file.name.removesuffix(".toml"): file.read_text("utf-8") for file in found}
    order = sorted(texts, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))
    return {name: {"opening": texts[name].partition("\n")[0], **tomllib.loads(texts[name])} for name in order}


@cache
def _cited() -> dict[str, dict[str, list[str]]]:
    """Name → paper → tables and figures. Any paper's file may cite any recipe; a recipe's own paper comes first."""
    names, files = list(recipes()), _files()
    cited = {name: {files[recipe.family].get("paper", ""): list[str]()} for name, recipe in recipes().items()}
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
    """["Table 1", "Table 2", "Figure 5"]: "Tables 1 and 2", "Figure 5"."""
    for noun in dict.fromkeys(place.split()[0] for place in places):
        *most, last = [place.split()[1] for place in places if place.split()[0] == noun]
        yield f"{noun}s {', '.join(most)} and {last}" if most else f"{noun} {last}"
