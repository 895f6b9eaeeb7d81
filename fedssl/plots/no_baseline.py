"""A note in a panel of gains, where a setting has none."""

from __future__ import annotations

from typing import Any

from fedssl.plots.style import GREY, SMALL

NO_BASELINE = "clients did not train alone"
NOTE_STYLE: dict[str, Any] = {
    "color": GREY,
    "fontsize": SMALL,
    "zorder": 3,
    "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1},
}


def note_no_baseline(axes: Any, row: int | None, value: float | None) -> None:
    """Write that a setting has no gain, because its clients did not train alone.

    Each setting has a `row`, or is at the `value` of a sweep.
    """
    if row is not None:
        at = axes.get_yaxis_transform()
        axes.text(0.5, row, NO_BASELINE, transform=at, ha="center", va="center", **NOTE_STYLE)
        return
    at = axes.get_xaxis_transform()
    turned = {"rotation": 90, "ha": "center", "va": "bottom"}
    axes.text(value or 0.0, 0.04, NO_BASELINE, transform=at, **turned, **NOTE_STYLE)
    axes.plot([value or 0.0], [0.0], linestyle="")  # the axis includes the value
