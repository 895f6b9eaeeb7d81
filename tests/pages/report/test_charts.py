"""The data of charts: ranges, quantiles of many clients, and bounds on their size."""

from __future__ import annotations

from typing import Any

import pytest

from fedssl.pages.report.charts import (
    MAX_CLIENT_LINES,
    MAX_POINTS,
    accuracy_chart,
    client_chart,
    client_switches,
    overall_chart,
    shown_rounds,
    values_range,
)
from fedssl.pages.report.training import Training


def _training(clients: int, rounds: int = 2) -> Training:
    """Client c has loss c in round 1, c + 1 in round 2, …"""
    training = Training()
    for number in range(rounds):
        reports = [{"client": str(c), "loss": float(c + number)} for c in range(clients)]
        line: dict[str, Any] = {"round": number + 1, "loss": 2.0 - number, "seconds": 1.0}
        training.add(line | {"clients": reports})
    training.finish()
    return training


@pytest.mark.parametrize(
    ("values", "zero", "expected"),
    [
        ([1, 4], False, (0, 4.2)),  # 0 is near
        ([90, 100], False, (89.5, 100.5)),
        ([99, 100], False, (94.0, 105.0)),  # a tenth of 100, in place of 1
        ([90, 100], True, (0, 105)),
        ([-1.2, -1.0], False, (-1.21, -0.99)),
        ([0, 0], False, (0, 1)),
        ([float("nan"), 5, 20], False, (0, 21)),
    ],
)
def test_an_axis_does_not_exaggerate(
    values: list[float], zero: bool, expected: tuple[float, float]
) -> None:
    assert values_range(values, zero) == pytest.approx(expected)


def test_a_chart_states_where_its_axis_begins() -> None:
    training = _training(1)
    training.overall["lr"] = [90.0, 100.0]
    chart = overall_chart("rate", training, {"lr": "rate"}, y_label="%")
    assert chart is not None
    assert (chart["yRange"], chart["yLabel"]) == ([0, 105], "%")
    accuracies = accuracy_chart(training, {0: 70.0, 2: 80.0}, {})
    assert accuracies is not None
    assert accuracies["yRange"] == [65, 85]
    assert accuracies["yLabel"] == "%; axis from 65"


def test_few_clients_have_a_line_each_and_the_mean_of_the_log() -> None:
    chart = client_chart(_training(3), "loss")
    assert chart is not None
    lines = {line["label"]: line["values"] for line in chart["series"]}
    assert lines["client 2"] == [2, 3]
    assert lines["mean of all"] == [2, 1]


def test_the_median_of_other_metrics_is_over_the_clients_that_have_one() -> None:
    training = _training(4)
    for number, client in enumerate(training.clients):
        training.clients[client]["effective_rank"] = [float(number) ** 2, None]
    chart = client_chart(training, "effective_rank")
    assert chart is not None
    assert chart["series"][-1]["label"] == "median"
    assert chart["series"][-1]["values"] == [2.5, None]  # of 0, 1, 4, 9


def test_many_clients_are_quantiles() -> None:
    """Of 0 … 100, the 5% quantile is 5; a round later, all are larger by 1."""
    training = _training(101)
    chart = client_chart(training, "loss")
    assert chart is not None
    values = [line["values"] for line in chart["series"]]
    assert values == [[5, 6], [25, 26], [50, 51], [75, 76], [95, 96]]
    assert chart["bands"] == [{"high": 4, "low": 0}, {"high": 3, "low": 1}]


def test_many_rounds_are_thinned_and_keep_both_ends() -> None:
    assert shown_rounds(5) == [0, 1, 2, 3, 4]
    shown = shown_rounds(10 * MAX_POINTS)
    assert len(shown) == MAX_POINTS
    assert (shown[0], shown[-1]) == (0, 10 * MAX_POINTS - 1)
    chart = client_chart(_training(2, rounds=2 * MAX_POINTS), "loss")
    assert chart is not None
    assert len(chart["x"]) == len(chart["series"][0]["values"]) == MAX_POINTS


def test_only_a_few_clients_have_switches() -> None:
    assert client_switches(["a"]) == ""
    assert client_switches(["a"] * (MAX_CLIENT_LINES + 1)) == ""
    assert client_switches(["<b>", "1"]).count('aria-pressed="true"') == 2
    assert "<b>" not in client_switches(["<b>", "1"])


def test_baselines_are_horizontal_lines_in_the_order_of_the_table() -> None:
    table = {"this run": {}, "random": {"knn": {"mean": 60.0}}, "isolated": {"knn": {"mean": 70.0}}}
    chart = accuracy_chart(_training(1), {0: 60.0, 2: 80.0}, table)
    assert chart is not None
    lines = [(line["label"], line["values"]) for line in chart["series"]]
    assert lines == [
        ("this run", [60, 80]),
        ("each client alone", [70, 70]),
        ("random backbone", [60, 60]),
    ]
