"""How pictures of analyses look: one set of colours that colour-blind people can tell apart, one grid, one file."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from typing import Any

from fedssl.errors import ConfigError

# Okabe and Ito's, without yellow, which is hard to see on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
STYLES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
SEVERAL = 10  # lines that can be told apart; of more, the middle and the spread are drawn
LETTERS = 14  # of a legend, in an inch
WRITTEN = 12  # sides of a matrix whose cells have room for numbers


def need_matplotlib() -> None:
    """Say before anything is computed that the picture could not be drawn."""
    try:
        import matplotlib  # noqa: F401
        import sklearn  # noqa: F401
    except ImportError:
        raise ConfigError('an analysis draws a picture: in a clone of fedssl, pip install ".[viz]"') from None


def figure(rows: int, columns: int, width: float = 5.0, height: float = 4.0, **more: Any) -> tuple[Any, Any]:
    """A figure and its axes (rows, columns). It is nobody's current figure, so nothing has to be closed."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    wide = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08)  # a colour bar's words stay clear of what is beside it
    made = Figure(figsize=(width * columns, height * rows), layout=wide)
    return made, made.subplots(rows, columns, squeeze=False, **more)


def legend(drawn: Any, axes: Iterable[Any], title: str | None = None) -> None:
    """Of all lines in some axes, each name once, below the figure: within it, it would lie on what it explains."""
    pairs = [each.get_legend_handles_labels() for each in axes]
    found = {name: handle for handles, names in pairs for handle, name in zip(handles, names, strict=True)}
    if found:
        letters = max(len(name) for name in found) + 6  # the line and a gap
        columns = max(1, min(len(found), int(drawn.get_figwidth() * LETTERS / letters)))
        words = {"loc": "outside lower center", "frameon": False, "fontsize": 8}
        drawn.legend(found.values(), found.keys(), ncols=columns, title=title, **words)


def png(drawn: Any) -> bytes:
    buffer = io.BytesIO()
    drawn.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def look(number: int) -> dict[str, Any]:
    """Colour, dashes and marker of one of several lines, so that no two of the first 28 look the same."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": STYLES[number // len(COLOURS) % len(STYLES)],
        "marker": MARKERS[number % len(MARKERS)],
        "markersize": 4,
    }


def titled(model: str) -> str:
    """A model's name where it stands alone: clients that were dealt their images are called by a number only."""
    run, slash, name = model.rpartition("/")
    return f"{run}{slash}client {name}" if name.isdigit() else model


def over_rounds(axes: Any, label: str) -> None:
    axes.set(xlabel="round", ylabel=label)
    whole_rounds(axes)
    axes.grid(alpha=0.3)


def whole_rounds(axes: Any) -> None:
    """Ticks at whole numbers, also where a single round is drawn: there are no others."""
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)


def matrix(figure: Any, axes: Any, values: Sequence[Sequence[float]], names: Sequence[str], label: str) -> None:
    """A symmetric table of numbers as colours, with the numbers in it where there is room. Its diagonal is left empty:
    the zeros there would take all contrast from the rest."""
    shown_values = [[math.nan if i == j else value for j, value in enumerate(row)] for i, row in enumerate(values)]
    rest = [value for row in shown_values for value in row if not math.isnan(value)]
    image = axes.imshow(shown_values, cmap="cividis", vmin=min(rest), vmax=max(rest))
    figure.colorbar(image, ax=axes, label=label, shrink=0.8)
    few = len(names) <= WRITTEN
    shown = range(len(names)) if few else range(0, len(names), -(-len(names) // WRITTEN))
    short = [names[i] if len(names[i]) < 18 else "…" + names[i][-16:] for i in shown]
    axes.set_xticks(list(shown), short, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(list(shown), short)
    if few:
        middle = (max(rest) + min(rest)) / 2
        for i, row in enumerate(shown_values):
            for j, value in enumerate(row):
                colour, text = "black" if value > middle else "white", f"{value:.3g}"
                if i != j:
                    axes.text(j, i, text, ha="center", va="center", color=colour, fontsize=8)
