"""Plots of comparisons and sweeps."""

from __future__ import annotations

import pytest

from fedssl.plots.comparison import Accuracy, Setting, draw_comparison, draw_sweep, is_logarithmic
from fedssl.plots.style import new_figure


def _setting(label: str, mean: float, value: float | None = None) -> Setting:
    final = Accuracy(mean, [mean - 1, mean + 1], (mean - 3, mean + 2))
    curve = [(1, mean - 9, mean - 10, mean - 8), (2, mean, mean - 1, mean + 1)]
    return Setting(label, {"kNN": final, "linear": final}, curve, value)


def test_error_bars_have_the_ends_of_the_interval() -> None:
    final = Accuracy(70.0, [70.0], (67.0, 72.0))
    assert final.error == [[3.0], [2.0]]
    assert Accuracy(70.0, [70.0]).error is None


def test_a_comparison_has_a_line_and_a_row_for_each_setting() -> None:
    figure = draw_comparison([_setting("a", 70.0), _setting("b", 80.0)], None, "95% interval")
    left, right = figure.axes
    assert [line.get_label() for line in left.lines] == ["a", "b"]
    assert list(left.lines[1].get_ydata()) == [71.0, 80.0]
    assert [tick.get_text() for tick in right.get_yticklabels()] == ["a", "b"]
    low, high = right.get_xlim()
    assert low <= 67.0
    assert high >= 82.0
    (legend,) = figure.legends
    assert "95% interval" in [text.get_text() for text in legend.get_texts()]


@pytest.mark.parametrize("swept", [None, "train.lr"])
def test_gains_over_clients_alone_have_a_panel_with_a_line_at_0(swept: str | None) -> None:
    """The second setting has no gain, and so a note instead of a point."""
    gain = Accuracy(3.0, [], (1.0, 6.0))
    settings = [_setting("a", 70.0, 0.1)._replace(gain=gain), _setting("b", 80.0, 1.0)]
    panel = draw_comparison(settings, swept, "95% interval").axes[2]
    assert panel.get_title() == "gain over clients that train alone"
    assert [text.get_text() for text in panel.texts] == ["clients did not train alone"]
    (interval,) = [c for c in panel.collections if len(c.get_segments()) == 1]
    along = 0 if swept is None else 1
    assert interval.get_segments()[0][:, along].tolist() == [1.0, 6.0]
    zero = panel.lines[-1]
    assert list((zero.get_xdata, zero.get_ydata)[along]()) == [0, 0]
    # From -5, as small gains must not fill the panel, to 6, with a margin of 5%.
    limits = panel.get_xlim() if swept is None else panel.get_ylim()
    assert limits == pytest.approx((-5.55, 6.55))
    label = panel.get_xlabel() if swept is None else panel.get_ylabel()
    assert label == "gain by linear (points)"


def test_a_sweep_is_drawn_in_the_order_of_its_values() -> None:
    settings = [_setting("lr 1", 70.0, 1.0), _setting("lr 0.1", 80.0, 0.1)]
    _, axes = new_figure(1, 1)
    draw_sweep(axes[0, 0], settings, "train.lr", "± std")
    line = next(line for line in axes[0, 0].lines if line.get_label() == "linear")
    assert list(line.get_xdata()) == [0.1, 1.0]
    assert line.get_linestyle() == "None"  # a line between two points would suggest a trend
    assert list(line.get_ydata()) == [80.0, 70.0]
    assert axes[0, 0].get_xscale() == "log"
    assert [tick.get_text() for tick in axes[0, 0].get_xticklabels()] == ["0.1", "1"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [([0.1, 1.0], True), ([0.2, 1.0], False), ([0.0, 10.0], False), ([-1.0, 10.0], False)],
)
def test_an_axis_is_logarithmic_if_values_span_a_decade(
    values: list[float], expected: bool
) -> None:
    assert is_logarithmic(values) is expected
