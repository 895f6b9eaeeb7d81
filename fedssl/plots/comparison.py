"""Plot several settings next to each other: accuracy by round, final accuracies, and sweeps."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fedssl.plots.no_baseline import note_no_baseline
from fedssl.plots.style import (
    COLOURS,
    GREY,
    MARKERS,
    MIN_ACCURACY_SPAN,
    SMALL,
    error_bar,
    legend_below,
    line_style,
    new_figure,
    set_accuracy_axis,
    set_round_axes,
)

LABEL_CHARACTERS = 26  # of a line of a label
MIN_LINE = 3  # values of a sweep: a line between two points would suggest a trend
MAX_VALUE_TICKS = 8  # values of a sweep that are written on its axis
WIDTH = 5.0  # inches of a panel
ZERO_STYLE: dict[str, Any] = {"color": "black", "linewidth": 1.0, "linestyle": ":"}
SEED_STYLE: dict[str, Any] = {"marker": ".", "markersize": 5, "linestyle": "", "color": GREY}


class Accuracy(NamedTuple):
    """A final accuracy in percent: the mean over seeds, each seed, and the ends of an interval."""

    mean: float
    seeds: Sequence[float]
    ends: tuple[float, float] | None = None

    @property
    def extent(self) -> list[float]:
        """All values that an axis must show."""
        return [self.mean, *self.seeds, *(self.ends or ())]

    @property
    def error(self) -> list[list[float]] | None:
        """The distances of the ends from the mean, as matplotlib's errorbar takes them."""
        if self.ends is None:
            return None
        return error_bar(self.mean, self.ends)


class Setting(NamedTuple):
    """One of the settings that are compared."""

    label: str
    finals: Mapping[str, Accuracy]  # by the name of the probe
    curve: Sequence[tuple[int, float, float, float]] = ()  # round, mean, lowest, highest
    value: float | None = None  # of the setting that is swept
    gain: Accuracy | None = None  # over clients that train alone, in points, by the last probe


def draw_comparison(settings: Sequence[Setting], swept: str | None, bars: str) -> Any:
    """Return a figure: accuracy by round, final accuracies and, if known, gains over clients alone.

    Final accuracies are drawn against the value of the setting named `swept`, or in a row for each
    setting. `bars` states what the error bars are.
    """
    height = max(4.4, 1.8 + 0.5 * len(settings))
    gained = any(setting.gain is not None for setting in settings)
    figure, axes = new_figure(
        1, 3 if gained else 2, width=WIDTH, height=height, max_width=3 * WIDTH
    )
    left, middle, *right = axes[0]
    _draw_curves(left, settings)
    if swept is not None:
        draw_sweep(middle, settings, swept, bars)
    else:
        _draw_finals(middle, settings, bars)
    middle.set_title("final accuracy", fontsize=10)
    for panel in right:
        _draw_gains(panel, settings, swept)
    legend_below(figure, axes[0])
    return figure


def _draw_gains(axes: Any, settings: Sequence[Setting], swept: str | None) -> None:
    """Draw the gain of each setting over clients alone with its interval, and a line at 0."""
    probe = _probes(settings)[-1]
    label = f"gain by {probe} (points)"
    for row, setting in enumerate(settings):
        gain = setting.gain
        if gain is None:
            note_no_baseline(axes, row if swept is None else None, setting.value)
            continue
        style = line_style(row)
        mark = {"color": style["color"], "marker": style["marker"], "markersize": 6}
        if swept is None:
            axes.errorbar([gain.mean], [row], xerr=gain.error, capsize=3, linewidth=1.2, **mark)
        else:
            value = [setting.value or 0.0]
            axes.errorbar(value, [gain.mean], yerr=gain.error, capsize=3, linewidth=1.2, **mark)
    limits = _gain_limits(settings)
    if swept is None:
        _set_rows(axes, settings)
        axes.axvline(0, **ZERO_STYLE)
        axes.set(xlabel=label, xlim=limits)
    else:
        _set_value_axis(axes, sorted(setting.value or 0.0 for setting in settings), swept)
        axes.axhline(0, **ZERO_STYLE)
        axes.set(ylabel=label, ylim=limits)
    axes.grid(alpha=0.3, axis="x" if swept is None else "y")
    axes.set_title("gain over clients that train alone", fontsize=10)


def _gain_limits(settings: Sequence[Setting]) -> tuple[float, float]:
    """Return the ends of an axis for gains: it spans at least as much as one of accuracies."""
    least = MIN_ACCURACY_SPAN / 2
    shown = [-least, least]
    for setting in settings:
        if setting.gain is not None:
            shown += setting.gain.extent
    margin = 0.05 * (max(shown) - min(shown))
    return min(shown) - margin, max(shown) + margin


def draw_sweep_alone(settings: Sequence[Setting], swept: str, bars: str) -> Any:
    """Return a figure of final accuracies against the value of the setting named `swept`."""
    figure, axes = new_figure(1, 1, width=6.5, height=4.2)
    draw_sweep(axes[0, 0], settings, swept, bars)
    legend_below(figure, [axes[0, 0]])
    return figure


def draw_sweep(axes: Any, settings: Sequence[Setting], swept: str, bars: str) -> None:
    """Draw a line, or two points, for each probe: accuracy against the setting named `swept`."""
    ordered = sorted(settings, key=lambda setting: setting.value or 0.0)
    values: list[float] = []
    for setting in ordered:
        values.append(setting.value or 0.0)
    # The last colours of the palette: a panel of curves next to it has the first ones.
    for number, probe in enumerate(reversed(_probes(settings)), 1):
        style = line_style(len(COLOURS) - number)
        means = []
        for value, setting in zip(values, ordered, strict=True):
            final = setting.finals[probe]
            means.append(final.mean)
            _draw_seeds_and_bar(axes, value, final, style["color"])
        if len(values) < MIN_LINE:
            style["linestyle"] = ""
        axes.plot(values, means, label=probe, **style)
    _set_value_axis(axes, values, swept)
    set_accuracy_axis(axes, _extent(settings), "accuracy (%)")
    _explain(axes, settings, bars)


def _draw_seeds_and_bar(axes: Any, value: float, final: Accuracy, colour: str) -> None:
    if final.error is not None:
        axes.errorbar(
            [value], [final.mean], yerr=final.error, color=colour, capsize=3, linewidth=1.2
        )
    if len(final.seeds) > 1:
        axes.plot([value] * len(final.seeds), final.seeds, zorder=3, **SEED_STYLE)


def _set_value_axis(axes: Any, values: Sequence[float], name: str) -> None:
    """Label the axis of a swept setting; it is logarithmic if the values span a decade."""
    axes.set_xlabel(name)
    if is_logarithmic(values):
        axes.set_xscale("log")
        axes.set_xlabel(f"{name} (logarithmic)")
        axes.minorticks_off()
    if len(values) <= MAX_VALUE_TICKS:
        axes.set_xticks(values, list(map("{:g}".format, values)))


def is_logarithmic(values: Sequence[float]) -> bool:
    """True if the values are positive and span a decade."""
    return min(values) > 0 and max(values) >= 10 * min(values)


def _draw_curves(axes: Any, settings: Sequence[Setting]) -> None:
    """Draw a line for each setting, with a band from the lowest to the highest seed."""
    extent = []
    banded = False
    for number, setting in enumerate(settings):
        if not setting.curve:
            continue
        rounds, means, lows, highs = zip(*setting.curve, strict=True)
        style = line_style(number)
        axes.plot(rounds, means, label=setting.label, **style)
        extent += [*lows, *highs]
        if lows != highs:
            axes.fill_between(rounds, lows, highs, alpha=0.2, color=style["color"], linewidth=0)
            banded = True
    set_round_axes(axes, "")
    if extent:
        set_accuracy_axis(axes, extent, "kNN accuracy (%)")
    title = "accuracy by round"
    if banded:
        title += " (line: mean, band: all seeds)"
    axes.set_title(title, fontsize=10)


def _draw_finals(axes: Any, settings: Sequence[Setting], bars: str) -> None:
    """Draw a row for each setting, with a point for each probe; the last probe is filled."""
    probes = _probes(settings)
    for row, setting in enumerate(settings):
        style = line_style(row)
        for number, probe in enumerate(probes):
            final = setting.finals[probe]
            y = row + 0.3 * (number - (len(probes) - 1) / 2)
            axes.errorbar(
                [final.mean],
                [y],
                xerr=final.error,
                color=style["color"],
                marker=style["marker"],
                markerfacecolor=_face(number, probes, style["color"]),
                markersize=6,
                capsize=3,
                linewidth=1.2,
            )
            if len(final.seeds) > 1:
                axes.plot(final.seeds, [y] * len(final.seeds), zorder=3, **SEED_STYLE)
    _set_rows(axes, settings)
    set_accuracy_axis(axes, _extent(settings), "accuracy (%)", "x")
    _add_probe_marks(axes, probes)
    _explain(axes, settings, bars)


def _set_rows(axes: Any, settings: Sequence[Setting]) -> None:
    """Name the row of each setting, the first at the top."""
    labels = []
    for setting in settings:
        labels.append(textwrap.fill(setting.label, LABEL_CHARACTERS))
    axes.set_yticks(range(len(settings)), labels, fontsize=SMALL)
    axes.set_ylim(len(settings) - 0.5, -0.5)


def _face(number: int, probes: Sequence[str], colour: str) -> str:
    """Return the colour inside the marker of a probe: the last probe is filled."""
    if number == len(probes) - 1:
        return colour
    return "white"


def _add_probe_marks(axes: Any, probes: Sequence[str]) -> None:
    """Add the meaning of filled and hollow points to the legend."""
    for number, probe in enumerate(probes):
        axes.plot(
            [],
            [],
            marker=MARKERS[0],
            linestyle="",
            color="black",
            markerfacecolor=_face(number, probes, "black"),
            label=probe,
        )


def _explain(axes: Any, settings: Sequence[Setting], bars: str) -> None:
    """Add the meaning of dots and bars to the legend, as far as they are drawn."""
    seeds = False
    intervals = False
    for final in _all_finals(settings):
        seeds |= len(final.seeds) > 1
        intervals |= final.ends is not None
    if seeds:
        axes.plot([], [], label="single seeds", **SEED_STYLE)
    if intervals:
        axes.errorbar([], [], yerr=[], color=GREY, capsize=3, linewidth=1.2, label=bars)


def _probes(settings: Sequence[Setting]) -> list[str]:
    return list(settings[0].finals)


def _all_finals(settings: Sequence[Setting]) -> Iterator[Accuracy]:
    for setting in settings:
        yield from setting.finals.values()


def _extent(settings: Sequence[Setting]) -> list[float]:
    values = []
    for final in _all_finals(settings):
        values += final.extent
    return values
