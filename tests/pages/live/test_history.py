"""Values for charts and tables from the lines of a rounds log."""

from __future__ import annotations

import pytest
from watched_runs import client_line, dropped_line, encoded, round_line

from fedssl.pages.live.charts import MAX_POINTS, charts
from fedssl.pages.live.history import History
from fedssl.runs.live_file import LiveWarning


def _history(*lines: dict[str, object]) -> History:
    history = History()
    history.add_lines(encoded(*lines))
    return history


def _series(history: History, name: str) -> dict[str, list[float | None]]:
    (chart,) = [chart for chart in charts(history) if chart["name"] == name]
    return {line["label"]: line["values"] for line in chart["series"]}


def test_sums_and_last_values() -> None:
    history = _history(round_line(1, seconds=10.0), round_line(2, seconds=30.0, of=6))
    assert (history.rounds, history.seconds, history.of) == (2, 40.0, 6)
    assert history.seconds_per_round == 20.0
    assert history.images_per_s == 8.0


def test_few_clients_have_lines_and_many_have_quartiles() -> None:
    """Eight clients with divergences 0, 10 … 70: the quartiles are 17.5, 35 and 52.5."""
    few = _history(round_line(1, client_line("3", 0.5), client_line("ward", 0.25)))
    assert _series(few, "divergence") == {"client 3": [5.0], "ward": [2.5]}
    many = _history(round_line(1, *(client_line(f"c{i}", loss=float(i)) for i in range(8))))
    assert _series(many, "divergence") == {
        "median": [35.0],
        "lower quartile": [17.5],
        "upper quartile": [52.5],
    }


def test_rounds_lines_and_charts_without_a_value_are_left_out() -> None:
    """kNN accuracy is measured every few rounds."""
    history = _history(round_line(1), round_line(2, knn=40.0), round_line(3))
    (chart,) = [chart for chart in charts(history) if chart["name"] == "knn"]
    assert chart["x"] == [2]
    assert chart["series"] == [{"label": "kNN", "values": [40.0]}]
    assert "epsilon" not in [chart["name"] for chart in charts(history)]
    assert charts(History()) == []


def test_accuracies_on_other_images_have_their_own_line() -> None:
    history = _history(round_line(1, knn_on=30.0), round_line(2, knn=40.0, knn_on=35.0))
    assert _series(history, "knn") == {"kNN": [None, 40.0], "on other images": [30.0, 35.0]}


def test_a_long_run_has_the_means_of_consecutive_rounds() -> None:
    lines = [round_line(number, loss=float(number)) for number in range(1, MAX_POINTS + 2)]
    (chart, *_) = charts(_history(*lines))
    assert chart["x"][:2] == [2, 4]
    assert chart["x"][-1] == MAX_POINTS + 1
    assert chart["series"][0]["values"][:2] == [1.5, 3.5]
    assert chart["series"][0]["values"][-1] == MAX_POINTS + 1


def test_a_dropped_client_keeps_its_last_metrics() -> None:
    history = _history(
        round_line(1, client_line("a", loss=3.0)),
        round_line(2, dropped_line("a", "NaN")),
    )
    client = history.clients["a"]
    assert (client.round, client.asked, client.drops, client.dropped) == (2, 2, 1, "NaN")
    assert client.loss == 3.0


def test_a_clipped_update_has_a_remark() -> None:
    history = _history(round_line(1, client_line("a", clipped=0.25)))
    assert history.clients["a"].note == "its update was scaled by 0.25"


@pytest.mark.rows("P11")
def test_lines_that_cannot_be_read_are_counted() -> None:
    history = History()
    good = encoded(round_line(1), round_line(2))
    bad = [b"{\n", b"[]\n", b'{"round": 2}\n', b"\xff\n", b'{"round": "3", "clients": []}\n']
    history.add_lines([good[0], *bad, good[0], good[1]])
    assert (history.rounds, history.unreadable) == (2, 6)  # also the repeated round 1


def test_a_collapse_is_found_in_the_log_and_a_known_warning_is_not_repeated() -> None:
    flat = client_line("a", embedding_std=0.01)
    history = _history(round_line(1, flat), round_line(2, flat))
    (warning,) = history.warnings
    assert warning.round == 2
    assert "collapse" in warning.text
    history.add_warnings([warning, LiveWarning(1, "near chance")])
    assert [each.round for each in history.warnings] == [2, 1]


def test_a_private_run_has_its_epsilon_and_no_metrics() -> None:
    line = {"client": "a", "dropped": None, "bytes_down": 8}
    private = {"privacy": {"epsilon": 1.5, "delta": 1e-5}, "loss": None, "images_per_s": 0}
    history = _history(round_line(1, line, **private))
    assert _series(history, "epsilon") == {"ε": [1.5]}
    assert [chart["name"] for chart in charts(history)] == ["epsilon"]
    assert history.delta == 1e-5


def test_small_changes_of_accuracy_do_not_fill_the_chart() -> None:
    """58.0 to 59.5 % are 1.5 points: the axis spans 10 and ends at multiples of 5."""
    history = _history(round_line(1), round_line(2, knn=58.0), round_line(3, knn=59.5))
    (chart,) = [chart for chart in charts(history) if chart["name"] == "knn"]
    assert (chart["yRange"], chart["yLabel"]) == ([50.0, 65.0], "accuracy (%); axis from 50")


def test_all_charts_have_the_same_range_of_rounds() -> None:
    history = _history(round_line(1), round_line(2, knn=40.0), round_line(3))
    ranges = {chart["name"]: chart["xRange"] for chart in charts(history)}
    assert (ranges["loss"], ranges["knn"]) == ([1, 3], [1, 3])
    assert charts(_history(round_line(1)))[0]["xRange"] == [1, 2]
