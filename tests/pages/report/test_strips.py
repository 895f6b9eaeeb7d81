"""Drawings in tables: positions on an axis, and bars."""

from __future__ import annotations

import re

from fedssl.pages.report.strips import (
    Axis,
    Mark,
    Segment,
    accuracy_axis,
    gain_axis,
    interval_strip,
    stacked_strip,
)


def test_an_axis_maps_its_range_to_1000_units() -> None:
    assert Axis(50, 100).place(60) == 200
    assert Axis(-4, 4).place(0) == 500


def test_an_axis_of_accuracies_shows_intervals_and_single_models_and_at_least_ten_points() -> None:
    """From 78 to 82 with a margin of 3 on each side: 75 to 85."""
    assert accuracy_axis([Mark(80, (79, 82), (78,))]) == Axis(75, 85)


def test_an_axis_of_gains_has_zero_in_its_middle() -> None:
    assert gain_axis([Mark(1, (-0.5, 2))]) == Axis(-5, 5)
    assert gain_axis([Mark(1, (-7.2, 2))]) == Axis(-8, 8)


def test_an_interval_is_drawn_between_its_ends() -> None:
    strip = interval_strip([Mark(60, (55, 75))], Axis(50, 100), 0, "sixty")
    assert 'd="M100 9L500 9" class="strip-interval"' in strip
    assert 'd="M200 9h.01" class="strip-dot"' in strip
    assert "strip-zero" not in strip
    assert 'aria-label="sixty"' in strip


def test_zero_is_marked_if_it_is_inside_the_axis() -> None:
    assert "strip-zero" in interval_strip([Mark(1)], Axis(-5, 5), 0, "")


def test_bars_are_stacked_and_scaled_to_the_longest_one() -> None:
    """30 and 20 of 100: 300 units from 0, and 200 from 300. Empty segments are left out."""
    segments = [Segment(30, 0, "a"), Segment(0, 1, "b"), Segment(20, 8, "<c>")]
    bar = stacked_strip(segments, 100, "")
    places = re.findall(r'x="([\d.]+)" y="0" width="([\d.]+)" height="20" class="([\w-]+)"', bar)
    assert places == [("0.0", "300.0", "fill-0"), ("300.0", "200.0", "hatch-1")]
    assert "<title>&lt;c&gt;: 20</title>" in bar
