"""State in a table's title where its figures are not comparable with the published ones, and why."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

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
    trained = "; ".join(_trained(list(experiments)))
    actual = f": trained on {trained}" if trained else ""
    return f" [{scale} scale, NOT COMPARABLE with the published figures{actual}]"


def published_heading(comparable: bool) -> str:
    """Return the heading of the column of published figures."""
    return "published" if comparable else "published (not comparable)"


def _trained(experiments: Collection[dict[str, Any]]) -> list[str]:
    """Name data sets, networks and budget, e.g. ["cifar10", "resnet18", "100 rounds of 1 local epoch"]."""
    if not experiments:
        return []
    data = [each["data"].get("path") or each["data"]["name"] for each in experiments]
    networks = [each["method"]["backbone"] for each in experiments]
    rounds = _range([each["rounds"] for each in experiments])
    epochs = _range([each["train"]["epochs"] for each in experiments])
    plural = "" if epochs == "1" else "s"
    return [
        ", ".join(DATA.get(name, name) for name in dict.fromkeys(data)),
        ", ".join(dict.fromkeys(networks)),
        f"{rounds} rounds of {epochs} local epoch{plural}",
    ]


def _range(numbers: Collection[int]) -> str:
    low = min(numbers)
    high = max(numbers)
    return f"{low}" if low == high else f"{low}–{high}"
