"""State which figures are not comparable: with the published ones, or with each other.

Figures made by older code stay in a table, because they took hours and most changes of code change
no figure. The table names the code instead: a reader can judge whether a change mattered, and
`--fresh` makes those figures again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from fedssl.core.provenance import code
from fedssl.paper_tables.cell_result import CellResult, SeedResult

# By scale: how its trainings differ from the published ones; empty where they do not.
INCOMPARABLE = {
    "paper": "",
    "as it is": "",
    "short": "One local epoch per round: the published figures are of longer trainings and are not "
    "comparable with these.",
    "mini": "Small networks and few images: these figures show that the table runs, and are not "
    "comparable with the published ones.",
}
DATA = {"fashion-mini": "5,000 images of Fashion-MNIST"}


def caveat(scale: str, experiments: Iterable[dict[str, Any]]) -> str:
    """Return what to add to a title: the actual data and budget where they are not the paper's.

    `experiments` are the plain values of all trainings of the table.
    """
    if not INCOMPARABLE[scale]:
        return ""
    text = f"{scale} scale, NOT COMPARABLE with the published figures"
    trained_on = "; ".join(_data_network_budget(list(experiments)))
    if trained_on:
        text += f": trained on {trained_on}"
    return f" [{text}]"


def published_heading(comparable: bool) -> str:
    """Return the heading of the column of published figures."""
    if comparable:
        return "published"
    return "published (not comparable)"


def provenance_notes(results: Iterable[CellResult]) -> list[str]:
    """Return sentences about the versions, code and devices that made the figures."""
    results = list(results)
    notes = provenance_warnings(results)
    environments = _environments(_done_seeds(results))
    if len(environments) == 1:
        notes.append(f"Made by {environments[0]}.")
    return notes


def provenance_warnings(results: Iterable[CellResult]) -> list[str]:
    """Return warnings about figures made in different environments, or by other code."""
    done = _done_seeds(results)
    warnings = []
    environments = _environments(done)
    if len(environments) > 1:
        warnings.append(f"Figures were made in different environments: {'; '.join(environments)}.")
    outdated = [seed for seed in done if set(seed.codes) != {code()}]
    if outdated:
        warnings.append(
            f"{len(outdated)} of {len(done)} measurements were made by other code than the current "
            f"({code()}): --fresh makes them again and keeps the old ones under another name."
        )
    return warnings


def _done_seeds(results: Iterable[CellResult]) -> list[SeedResult]:
    done = []
    for result in results:
        for seed in result.seeds:
            if seed.done:
                done.append(seed)
    return done


def _environments(seeds: Iterable[SeedResult]) -> list[str]:
    return sorted(set(map(_environment, seeds)))


def _environment(seed: SeedResult) -> str:
    """Return e.g. "fedssl 0.1.0, code 0123abcd, torch 2.13.0, device cpu"."""
    values = {**seed.environment, "code": " and ".join(seed.codes)}
    parts = []
    for key in dict.fromkeys(["fedssl", "code", *values]):
        if key in values:
            parts.append(f"{key} {values[key]}")
    return ", ".join(parts)


def _data_network_budget(experiments: Collection[dict[str, Any]]) -> list[str]:
    """Return e.g. ["cifar10", "resnet18", "100 rounds of 1 local epoch"]."""
    if not experiments:
        return []
    data = []
    networks = []
    rounds = []
    epochs = []
    for values in experiments:
        data.append(_data_name(values["data"]))
        networks.append(values["method"]["backbone"])
        rounds.append(values["rounds"])
        epochs.append(values["train"]["epochs"])
    plural = "" if _range(epochs) == "1" else "s"
    return [
        ", ".join(dict.fromkeys(data)),
        ", ".join(dict.fromkeys(networks)),
        f"{_range(rounds)} rounds of {_range(epochs)} local epoch{plural}",
    ]


def _data_name(data: dict[str, Any]) -> str:
    name: str = data.get("path") or data["name"]
    return DATA.get(name, name)


def _range(numbers: Collection[int]) -> str:
    low = min(numbers)
    high = max(numbers)
    if low == high:
        return f"{low}"
    return f"{low}–{high}"
