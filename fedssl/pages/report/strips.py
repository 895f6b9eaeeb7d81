"""Small SVG drawings in the rows of a table: intervals on a common axis, and stacked bars.

Strips are stretched to the width of their column, so they contain no text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fedssl.pages.report.markup import Markup, join, tag
from fedssl.plots.style import COLOURS, accuracy_limits

WIDTH = 1000  # units of a strip
ROW = 18  # height of an interval in a strip
BAR = 20  # height of a stacked bar
MAX_KINDS = 2 * len(COLOURS)  # colours, plain and hatched
MIN_GAIN = 5.0  # points on either side of 0 that an axis of gains shows at least


class Mark(NamedTuple):
    """An estimate with the ends of its interval, and single values it is the mean of."""

    estimate: float
    ends: tuple[float, float] | None = None
    singles: Sequence[float] = ()
    hollow: bool = False  # to tell the marks of one row apart

    @property
    def extent(self) -> list[float]:
        """All values that an axis must show."""
        return [self.estimate, *self.singles, *(self.ends or ())]


class Axis(NamedTuple):
    """The range of a column of strips."""

    low: float
    high: float

    def place(self, value: float) -> float:
        """Return the horizontal position of a value."""
        return round(WIDTH * (value - self.low) / (self.high - self.low), 1)

    def header(self, name: str) -> Markup:
        """Return the heading of a column of strips: its name, and its ends and middle below."""
        ticks = []
        for value in (self.low, (self.low + self.high) / 2, self.high):
            ticks.append(tag("span", f"{value:.3g}"))
        return join(name, tag("span", *ticks, class_="ticks"))


def accuracy_axis(marks: Iterable[Mark]) -> Axis:
    """Return an axis for accuracies in percent, which does not exaggerate differences."""
    values: list[float] = []
    for mark in marks:
        values += mark.extent
    return Axis(*accuracy_limits(values))


def gain_axis(marks: Iterable[Mark]) -> Axis:
    """Return an axis for differences, with 0 in its middle."""
    most = MIN_GAIN
    for mark in marks:
        for value in mark.extent:
            most = max(most, math.ceil(abs(value)))
    return Axis(-most, most)


def interval_strip(marks: Sequence[Mark], axis: Axis, colour: int, label: str) -> Markup:
    """Return marks below each other in one colour, with a line at 0 if the axis has it inside."""
    height = ROW * len(marks)
    shapes = []
    for share in (0.0, 0.5, 1.0):
        shapes.append(_line(share * WIDTH, 0, share * WIDTH, height, "strip-grid"))
    if axis.low < 0 < axis.high:
        shapes.append(_line(axis.place(0), 0, axis.place(0), height, "strip-zero"))
    for number, mark in enumerate(marks):
        shapes += _mark(mark, axis, (number + 0.5) * ROW)
    return _svg(shapes, height, f"strip rows-{len(marks)} colour-{colour % len(COLOURS)}", label)


def _mark(mark: Mark, axis: Axis, y: float) -> list[Markup]:
    shapes = []
    if mark.ends is not None:
        low, high = map(axis.place, mark.ends)
        shapes.append(_line(low, y, high, y, "strip-interval"))
    for value in mark.singles:
        shapes.append(_dot(axis.place(value), y, "strip-single"))
    x = axis.place(mark.estimate)
    shapes.append(_dot(x, y, "strip-dot"))
    if mark.hollow:
        shapes.append(_dot(x, y, "strip-hole"))
    return shapes


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> Markup:
    return tag("path", d=f"M{x1:g} {y1:g}L{x2:g} {y2:g}", class_=style)


def _dot(x: float, y: float, style: str) -> Markup:
    """Return a dot: a line of no length with round ends, which stretching does not deform."""
    return tag("path", d=f"M{x:g} {y:g}h.01", class_=style)


class Segment(NamedTuple):
    """A part of a stacked bar."""

    size: float
    kind: int  # decides its colour
    name: str  # shown when pointed at


def stacked_strip(segments: Sequence[Segment], most: float, label: str) -> Markup:
    """Return a bar of segments; `most` is the total of the longest bar."""
    shapes = []
    left = 0.0
    for segment in segments:
        if segment.size <= 0:
            continue
        width = WIDTH * segment.size / most
        title = tag("title", f"{segment.name}: {segment.size:,.0f}")
        shapes.append(
            tag(
                "rect",
                title,
                x=f"{left:.1f}",
                y=0,
                width=f"{width:.1f}",
                height=BAR,
                class_=segment_style(segment.kind),
            )
        )
        left += width
    return _svg(shapes, BAR, "bar", label)


def segment_style(kind: int) -> str:
    """Return the class of a colour; kinds after the last colour are hatched."""
    colour = kind % len(COLOURS)
    if kind >= len(COLOURS):
        return f"hatch-{colour}"
    return f"fill-{colour}"


def hatchings() -> Markup:
    """Return the definitions of the hatched colours, which a page with bars has once."""
    patterns = []
    for colour in range(len(COLOURS)):
        ground = tag("rect", width=8, height=8, class_=f"fill-{colour}")
        stripe = tag("rect", width=3, height=8, class_="hatch-gap")
        patterns.append(
            tag(
                "pattern",
                ground,
                stripe,
                id=f"hatch-{colour}",
                width=8,
                height=8,
                patternUnits="userSpaceOnUse",
                patternTransform="rotate(45)",
            )
        )
    return tag(
        "svg", tag("defs", *patterns), class_="hidden", width=0, height=0, aria_hidden="true"
    )


def swatch(kind: int) -> Markup:
    """Return a small square in the colour of a segment."""
    square = tag("rect", width=12, height=12, rx=2, class_=segment_style(kind))
    return tag("svg", square, class_="swatch", viewBox="0 0 12 12", aria_hidden="true")


def _svg(shapes: Sequence[Markup], height: float, style: str, label: str) -> Markup:
    return tag(
        "svg",
        *shapes,
        class_=style,
        viewBox=f"0 0 {WIDTH} {height:g}",
        height=f"{height:g}",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
    )
