"""Plot how images are distributed among clients."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedssl.plots.style import COLOURS, DPI, HATCHES, MAX_WIDTH, SMALL

LEGEND_CLASSES = len(COLOURS) * len(HATCHES)  # more classes are shown by a colour scale
HATCH_CLASSES = len(COLOURS)  # classes with the same hatching


def plot_partition(hist: Tensor, classes: Sequence[str], title: str, path: Path) -> None:
    """Save a bar for each client, stacked by class, of the counts (K, C). Needs matplotlib."""
    # Figure, not pyplot: needs no window system and has no global state.
    from matplotlib.figure import Figure

    clients, class_count = hist.shape
    width = min(MAX_WIDTH, 4.5 + 0.35 * clients)
    figure = Figure(figsize=(width, 4.2), dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    colours = _class_colours(class_count)
    _add_boxes(axes, hist, colours)
    tallest = 1.03 * int(hist.sum(1).max())
    axes.set(
        xlabel="client", ylabel="images", xlim=(-0.6, clients - 0.4), ylim=(0, max(tallest, 1))
    )
    axes.set_title(title, fontsize=10)
    axes.set_xticks(range(0, clients, max(1, clients // 10)))
    axes.spines[["top", "right"]].set_visible(False)
    if class_count <= LEGEND_CLASSES:
        _add_legend(figure, colours, classes)
    else:
        _add_colour_scale(figure, axes, colours)
    figure.savefig(path)


def _add_boxes(axes: Any, hist: Tensor, colours: Sequence[Any]) -> None:
    """Draw the stacked boxes.

    A collection has all boxes with the same hatching: 100 clients with 100 classes would be 10,000
    slow bars.
    """
    from matplotlib.collections import PolyCollection

    clients, class_count = hist.shape
    boxes = _boxes(hist)
    for first in range(0, class_count, HATCH_CLASSES):
        classes = slice(first, first + HATCH_CLASSES)
        axes.add_collection(
            PolyCollection(
                boxes[:, classes].reshape(-1, 4, 2),
                facecolors=list(colours[classes]) * clients,
                hatch=_hatch(first, class_count),
                edgecolors="white",
                linewidths=0,
            )
        )


def _hatch(label: int, class_count: int) -> str:
    """Return the hatching of a class; a colour scale has none."""
    if class_count > LEGEND_CLASSES:
        return ""
    return HATCHES[label // HATCH_CLASSES]


def _boxes(hist: Tensor) -> Any:
    """Return the corners (K, C, 4, 2) of the stacked boxes."""
    clients, class_count = hist.shape
    # Few bars are separated by gaps; among many, gaps would only flicker.
    half_width = 0.5
    if clients <= 30:
        half_width = 0.41
    top = hist.cumsum(1).double()
    bottom = top - hist
    middle = torch.arange(clients, dtype=torch.float64)[:, None].expand(-1, class_count)
    left = middle - half_width
    right = middle + half_width
    x = torch.stack([left, right, right, left], -1)  # (K, C, 4)
    y = torch.stack([bottom, bottom, top, top], -1)
    return torch.stack([x, y], -1).numpy()


def _class_colours(count: int) -> list[Any]:
    """Return the palette, repeated, for up to LEGEND_CLASSES classes, otherwise a scale."""
    from matplotlib import colormaps

    if count > LEGEND_CLASSES:
        return list(colormaps["viridis"].resampled(count)(range(count)))
    return list(islice(cycle(COLOURS), count))


def _add_legend(figure: Any, colours: list[Any], classes: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    names = classes or range(len(colours))
    patches = []
    for label, (colour, name) in enumerate(zip(colours, names, strict=True)):
        hatch = _hatch(label, len(colours))
        patches.append(
            Patch(facecolor=colour, edgecolor="white", linewidth=0, hatch=hatch, label=str(name))
        )
    figure.legend(handles=patches[::-1], loc="outside right center", frameon=False, fontsize=SMALL)


def _add_colour_scale(figure: Any, axes: Any, colours: list[Any]) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    scale = ScalarMappable(Normalize(0, len(colours) - 1), ListedColormap(colours))
    figure.colorbar(scale, ax=axes, label="class")
