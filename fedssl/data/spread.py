"""How far clients differ in their classes: counts, one number, a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def histogram(parts: Mapping[str, Tensor], labels: Tensor, classes: int) -> Tensor:
    """Images of each class at each client: int64 (K, C) of index lists and int64 labels (N,)."""
    return torch.stack([torch.bincount(labels[index], minlength=classes) for index in parts.values()])


def earth_movers_distance(hist: Tensor) -> float:
    """Average over clients of the L1 distance of their class shares from those of all, given counts (K, C).

    0: all alike; 2 (1 - 1/C): one class each (Dec-SSL, Figure 17). Clients without images do not count.
    """
    held = hist[hist.sum(1) > 0].double()
    everybody = held.sum(0) / held.sum()
    shares = held / held.sum(1, keepdim=True)
    return float((shares - everybody).abs().sum(1).mean())


def draw(hist: Tensor, classes: Sequence[str], path: Path) -> None:
    """A picture of (K, C): one bar per client, stacked by class. Needs matplotlib."""
    # Figure, not pyplot: no window system, nothing global.
    from matplotlib.collections import PolyCollection
    from matplotlib.figure import Figure

    clients, count = hist.shape
    figure = Figure(figsize=(min(12.0, 4.5 + 0.35 * clients), 4.2), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    colours = _colours(count)
    # One collection of all boxes: a hundred clients of a hundred classes would be 10,000 slow bars.
    axes.add_collection(PolyCollection(_boxes(hist), facecolors=colours * clients, linewidths=0))
    tallest = 1.03 * int(hist.sum(1).max())
    axes.set(xlabel="client", ylabel="images", xlim=(-0.6, clients - 0.4), ylim=(0, max(tallest, 1)))
    axes.set_title(f"average earth mover's distance {earth_movers_distance(hist):.2f}", fontsize=10)
    axes.set_xticks(range(0, clients, max(1, clients // 10)))
    axes.spines[["top", "right"]].set_visible(False)
    _explain(figure, axes, colours, classes)
    figure.savefig(path)


def _boxes(hist: Tensor) -> Any:
    """Corners (K·C, 4, 2) of the stacked boxes, client after client."""
    clients, count = hist.shape
    half = 0.41 if clients <= 30 else 0.5  # few clients stand apart; among many, gaps would only flicker
    top = hist.cumsum(1).double()
    bottom = top - hist
    middle = torch.arange(clients, dtype=torch.float64)[:, None].expand(-1, count)
    left, right = middle - half, middle + half
    corners = [(left, bottom), (right, bottom), (right, top), (left, top)]
    return torch.stack([torch.stack(corner, -1) for corner in corners], -2).flatten(0, 1).numpy()


def _colours(count: int) -> list[Any]:
    """Distinct colours for up to 20 classes, then a scale."""
    from matplotlib import colormaps

    if count <= 20:
        palette = colormaps["tab10" if count <= 10 else "tab20"]
        return [palette(c) for c in range(count)]
    return [colormaps["turbo"](c / (count - 1)) for c in range(count)]


def _explain(figure: Any, axes: Any, colours: list[Any], classes: Sequence[str]) -> None:
    """A legend while names can be told apart, else a scale of class numbers."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize
    from matplotlib.patches import Patch

    if len(colours) <= 20:
        names = classes or [str(c) for c in range(len(colours))]
        patches = [Patch(color=colour, label=name) for colour, name in zip(colours, names, strict=True)]
        figure.legend(handles=patches[::-1], loc="outside right center", frameon=False, fontsize=8)
    else:
        scale = ScalarMappable(Normalize(0, len(colours) - 1), ListedColormap(colours))
        figure.colorbar(scale, ax=axes, label="class")
