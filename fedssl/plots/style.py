"""The common style of figures: palette, axes, grids and legends.

Lines, points and areas are also distinguishable without colours, by dashes, markers and hatching.
Pages show figures about 700 pixels wide: a figure of MAX_WIDTH inches has text of 9 points or more.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from itertools import permutations
from typing import Any

import numpy as np

from fedssl.core.errors import ConfigError

# Okabe and Ito's, without yellow, which is hard to see on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
GREY = "0.45"  # of text and lines that are not data
LINE_STYLES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
HATCHES = ("", "////", "....", "xxxx")
MAX_WIDTH = 10.0  # inches
DPI = 140
SMALL = 9.0  # points, the smallest text
MIN_ACCURACY_SPAN = 10.0  # points on an axis: a smaller range would exaggerate differences
MAX_LINES = 10  # lines in one panel; of more, the median and the quartiles are drawn
LEGEND_CHARACTERS_PER_INCH = 14
LEGEND_HANDLE_CHARACTERS = 6  # the width of the line and the gap before a name
MAX_MATRIX_NUMBERS = 12  # side of the largest matrix with numbers in its cells
MAX_NAME_CHARACTERS = 17  # longer names of a matrix are abbreviated


def can_draw() -> bool:
    """True if the packages that draw figures are installed."""
    return find_spec("matplotlib") is not None and find_spec("sklearn") is not None


def need_matplotlib() -> None:
    """Raise ConfigError if the packages that draw figures are missing."""
    try:
        import matplotlib  # noqa: F401
        import sklearn  # noqa: F401
    except ImportError:
        raise ConfigError(
            "matplotlib and scikit-learn are not installed: "
            'in a clone of fedssl, run pip install ".[viz]"'
        ) from None


def new_figure(
    rows: int,
    columns: int,
    width: float = 5.0,
    height: float = 4.0,
    *,
    max_width: float = MAX_WIDTH,
    **options: Any,
) -> tuple[Any, Any]:
    """Return a figure and its axes (rows, columns), each of the given size in inches.

    Panels are narrower if the figure would be wider than `max_width`. pyplot does not register the
    figure, so it need not be closed.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    # The padding keeps the label of a colour bar clear of the next panel.
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08)
    size = (min(width * columns, max_width), height * rows)
    figure = Figure(figsize=size, layout=layout)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def legend_below(
    figure: Any, axes: Iterable[Any], title: str | None = None, *, markerscale: float = 1.0
) -> None:
    """Add a legend of all lines in some axes, each name once, below the figure.

    Inside a panel the legend could cover the lines. `markerscale` enlarges small points.
    """
    handles: dict[str, Any] = {}
    for panel in axes:
        panel_handles, names = panel.get_legend_handles_labels()
        handles |= zip(names, panel_handles, strict=True)
    if not handles:
        return
    longest = max(map(len, handles)) + LEGEND_HANDLE_CHARACTERS
    width = figure.bbox.width / figure.dpi  # also of a subfigure
    fitting = int(width * LEGEND_CHARACTERS_PER_INCH / longest)
    figure.legend(
        handles.values(),
        handles.keys(),
        ncols=max(1, min(len(handles), fitting)),
        title=title,
        loc="outside lower center",
        frameon=False,
        fontsize=SMALL,
        markerscale=markerscale,
    )


def encode_png(figure: Any) -> bytes:
    """Return the figure as the bytes of a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


def line_style(number: int) -> dict[str, Any]:
    """Return colour, dashes and marker of a line; those of the first 28 numbers differ."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": LINE_STYLES[number % len(LINE_STYLES)],
        # Another marker in each repetition of the colours.
        "marker": MARKERS[(number + number // len(COLOURS)) % len(MARKERS)],
        "markersize": 4,
    }


def point_style(number: int) -> dict[str, Any]:
    """Return colours and marker of a class of points; those of the first 49 numbers differ.

    Points of every second repetition of the palette are hollow.
    """
    colour = COLOURS[number % len(COLOURS)]
    repetition = number // len(COLOURS)
    return {
        "facecolors": (colour, "none")[repetition % 2],
        "edgecolors": colour,
        "linewidths": 0.8,
        "marker": MARKERS[(number + repetition) % len(MARKERS)],
    }


def accuracy_limits(values: Iterable[float]) -> tuple[float, float]:
    """Return the ends of an axis for accuracies in percent: multiples of 5.

    The axis spans at least MIN_ACCURACY_SPAN points, and begins at 0 if the values are near it.
    """
    shown = list(values)
    low = min(shown)
    high = max(shown)
    missing = max(0.0, MIN_ACCURACY_SPAN - (high - low)) / 2
    margin = max(missing, 0.05 * (high - low))
    bottom = 5.0 * math.floor((low - margin) / 5)
    top = 5.0 * math.ceil((high + margin) / 5)
    top = min(100.0, max(top, MIN_ACCURACY_SPAN))
    bottom = max(0.0, min(bottom, top - MIN_ACCURACY_SPAN))
    if bottom < (top - bottom) / 2:
        bottom = 0.0
    return bottom, top


def set_accuracy_axis(axes: Any, values: Iterable[float], label: str, which: str = "y") -> None:
    """Label an axis of accuracies and set its ends; the label states where it begins if not at 0.

    `which` is "x" or "y".
    """
    bottom, top = accuracy_limits(values)
    if bottom > 0:
        label += f"; axis from {bottom:g}"
    axes.set(**{f"{which}label": label, f"{which}lim": (bottom, top)})
    axis = getattr(axes, f"{which}axis")
    axis.get_major_locator().set_params(integer=True, steps=[1, 2, 5, 10])
    axes.grid(alpha=0.3, axis=which)


def error_bar(mean: float, ends: tuple[float, float]) -> list[list[float]]:
    """Return the distances of an interval's ends from the mean, as matplotlib takes them."""
    low, high = ends
    return [[max(0.0, mean - low)], [max(0.0, high - mean)]]


def model_title(model: str) -> str:
    """Return a model's name as a title: "client 3" for clients that are named by a number only."""
    run, slash, name = model.rpartition("/")
    if name.isdigit():
        return f"{run}{slash}client {name}"
    return model


def set_round_axes(axes: Any, label: str) -> None:
    """Label axes that show a quantity over rounds."""
    axes.set(xlabel="round", ylabel=label)
    set_integer_ticks(axes)
    axes.grid(alpha=0.3)


def set_integer_ticks(axes: Any) -> None:
    """Put the ticks of the x axis at integers, also where only one integer is in range."""
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)


def draw_matrix(
    figure: Any,
    axes: Any,
    values: Sequence[Sequence[float]],
    *,
    names: Sequence[str],
    label: str,
) -> None:
    """Draw a symmetric matrix of pairs of models, with the numbers in its cells if they fit.

    The diagonal is left empty: its zeros would reduce the contrast of the other cells.
    """
    shown = np.array(values, dtype=float)
    np.fill_diagonal(shown, np.nan)
    low = np.nanmin(shown)
    high = np.nanmax(shown)
    image = axes.imshow(shown, cmap="cividis", vmin=low, vmax=high)
    figure.colorbar(image, ax=axes, label=label, shrink=0.8)
    step = -(-len(names) // MAX_MATRIX_NUMBERS)  # 1 if all names fit
    ticks = list(range(0, len(names), step))
    tick_names = list(map(_abbreviate, names[::step]))
    axes.set_xticks(ticks, tick_names, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(ticks, tick_names)
    axes.set_title("between models")
    if len(names) <= MAX_MATRIX_NUMBERS:
        _write_cells(axes, shown, middle=(high + low) / 2)


def _abbreviate(name: str) -> str:
    if len(name) <= MAX_NAME_CHARACTERS:
        return name
    return "…" + name[-(MAX_NAME_CHARACTERS - 1) :]


def _write_cells(axes: Any, values: Any, middle: float) -> None:
    """Write the numbers off the diagonal of a matrix, in black where the colour is light."""
    for i, j in permutations(range(len(values)), 2):
        value = values[i, j]
        colour = "black" if value > middle else "white"
        axes.text(j, i, f"{value:.3g}", ha="center", va="center", color=colour, fontsize=SMALL)
