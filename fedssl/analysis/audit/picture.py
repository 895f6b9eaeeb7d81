"""Draw an audit: reconstructions next to the originals, and the membership attack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedssl.analysis.audit.result import AttackResult, Strip
from fedssl.plots.style import COLOURS, GREY, SMALL, new_figure

GAP = 1  # pixels between images
COLUMNS = 2


def draw_audit(found: Sequence[AttackResult]) -> Any:
    """Return a figure with a panel for each attack that shows images, and one for membership."""
    strips = [result for result in found if result.strip is not None]
    separations = [result for result in found if "auc" in result.details]
    panels = len(strips) + bool(separations)
    rows = -(-max(1, panels) // COLUMNS)
    figure, axes = new_figure(rows, COLUMNS, width=5.0, height=2.2)
    remaining = list(axes.flat)
    for result in strips:
        assert result.strip is not None
        title = f"{result.name}\n{result.result}, guessing {result.guessing}"
        _draw_strip(remaining.pop(0), result.strip, title)
    if separations:
        _draw_separations(remaining.pop(0), separations)
    for panel in remaining:
        panel.set_axis_off()
    figure.suptitle("Private images: for their owner only", color=COLOURS[1], fontsize=SMALL + 1)
    return figure


def _draw_strip(axes: Any, strip: Strip, title: str) -> None:
    """Draw rows of images with the label of each row on the left."""
    lines = []
    for images in strip.rows.values():
        lines.append(_line(images))
    height = lines[0].shape[0] + GAP
    picture = torch.cat([_below(line) for line in lines])[:-GAP]
    axes.imshow(picture.numpy(), interpolation="nearest", vmin=0, vmax=1)
    centres = [height * number + (height - GAP) / 2 for number in range(len(lines))]
    axes.set_yticks(centres, list(strip.rows), fontsize=SMALL)
    axes.set_xticks([])
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_title(title, fontsize=SMALL)


def _line(images: Tensor) -> Tensor:
    """Return images (n, C, H, W) next to each other as (H, n·(W + GAP) − GAP, 3)."""
    columns = []
    for image in images:
        colour = image[:3] if len(image) >= 3 else image[:1].expand(3, *image.shape[1:])
        columns.append(torch.nn.functional.pad(colour, (0, GAP), value=1.0))
    return torch.cat(columns, 2)[:, :, :-GAP].permute(1, 2, 0).clamp(0, 1)


def _below(line: Tensor) -> Tensor:
    """Return a line of images with a white gap below it."""
    return torch.cat([line, line.new_ones(GAP, *line.shape[1:])])


def _draw_separations(axes: Any, found: Sequence[AttackResult]) -> None:
    """Draw the AUC of each model with its interval, and that of an untrained one."""
    names = []
    for row, result in enumerate(found):
        details = result.details
        _draw_interval(axes, row - 0.12, details, COLOURS[0], "o")
        _draw_interval(axes, row + 0.12, details["untrained"], COLOURS[1], "s")
        names.append(result.case)
    axes.axvline(0.5, color=GREY, linestyle="--", linewidth=1)
    handles = [
        axes.plot([], [], "o", color=COLOURS[0], label="trained")[0],
        axes.plot([], [], "s", color=COLOURS[1], label="untrained")[0],
    ]
    axes.legend(handles=handles, fontsize=SMALL, frameon=False, loc="upper left")
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.4), max(high, 0.6))
    axes.xaxis.get_major_locator().set_params(nbins=5)
    axes.set_yticks(range(len(names)), names, fontsize=SMALL)
    axes.set_ylim(len(names) - 0.5, -0.9)
    axes.set_xlabel("AUC of membership, 95% interval; 0.5: guessing", fontsize=SMALL)
    axes.set_title(found[0].attack, fontsize=SMALL)
    axes.grid(alpha=0.3, axis="x")


def _draw_interval(axes: Any, row: float, figures: Any, colour: str, marker: str) -> None:
    low, high = figures["auc_interval"]
    axes.plot([low, high], [row, row], color=colour)
    axes.plot([figures["auc"]], [row], marker=marker, color=colour)
