"""Axes and styles that figures share."""

from __future__ import annotations

import pytest

from fedssl.plots.style import (
    COLOURS,
    MARKERS,
    MIN_ACCURACY_SPAN,
    accuracy_limits,
    line_style,
    new_figure,
    point_style,
    set_accuracy_axis,
)


@pytest.mark.parametrize(
    ("values", "limits"),
    [
        ([81.0, 81.3], (75.0, 90.0)),  # 0.3 points are not the whole axis
        ([60.0, 80.0], (55.0, 85.0)),
        ([20.0, 80.0], (0.0, 85.0)),  # nearly the whole range: begins at 0
        ([0.0, 0.5], (0.0, 10.0)),
        ([99.5, 99.9], (90.0, 100.0)),
        ([0.0, 100.0], (0.0, 100.0)),
    ],
)
def test_accuracy_axes_do_not_exaggerate(values: list[float], limits: tuple[float, float]) -> None:
    assert accuracy_limits(values) == limits
    assert limits[1] - limits[0] >= MIN_ACCURACY_SPAN


def test_an_axis_that_does_not_begin_at_0_is_labelled() -> None:
    _, axes = new_figure(1, 2)
    set_accuracy_axis(axes[0, 0], [60.0, 80.0], "accuracy (%)")
    set_accuracy_axis(axes[0, 1], [20.0, 80.0], "accuracy (%)", "x")
    assert axes[0, 0].get_ylabel() == "accuracy (%); axis from 55"
    assert axes[0, 1].get_xlabel() == "accuracy (%)"
    assert axes[0, 1].get_xlim() == (0.0, 85.0)


def test_neighbouring_lines_differ_without_colour() -> None:
    for number in range(27):
        here = line_style(number)
        after = line_style(number + 1)
        assert here["linestyle"] != after["linestyle"]
        assert here["marker"] != after["marker"]


def test_points_look_different() -> None:
    styles = [tuple(point_style(number).values()) for number in range(len(COLOURS) * len(MARKERS))]
    assert len(set(styles)) == len(styles)


def test_a_wide_figure_is_not_wider_than_a_page() -> None:
    figure, _ = new_figure(1, 4)
    assert figure.get_figwidth() == 10.0
