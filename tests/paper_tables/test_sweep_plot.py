"""Plots of sweeps over one numeric setting."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fake_results import fake_result, make_sweep

from fedssl.paper_tables.sweep_plot import measured_settings, swept_setting, write_sweep_plot
from fedssl.plots.comparison import Accuracy, Setting


@pytest.mark.parametrize(
    ("assignments", "expected"),
    [
        (("train.lr=0.1,0.2",), "train.lr"),
        (("train.lr=0.1,0.2", "rounds=3"), "train.lr"),
        (("train.lr=0.1,0.2", "rounds=3,4"), None),
        (("method=byol,simsiam",), None),
        (("guard.clip=true,false",), None),
        (("train.lr=0.1",), None),
        ((), None),
    ],
    ids=str,
)
def test_one_numeric_setting_is_plotted(
    assignments: tuple[str, ...], expected: str | None, tmp_path: Path
) -> None:
    outcome = make_sweep(tmp_path, *assignments, probes=("linear",))
    assert swept_setting(outcome.results) == expected


def test_rows_with_all_figures_are_plotted(tmp_path: Path) -> None:
    outcome = make_sweep(tmp_path, "train.lr=0.1,0.2,0.4", probes=("knn", "linear"))
    for plan, value in zip(outcome.requested_seeds, (70.0, 71.0, 72.0, 73.0, 74.0), strict=False):
        fake_result(plan, value)
    settings = measured_settings(outcome.results, "train.lr")
    assert settings == [
        Setting("train.lr=0.1", _finals(70.0, 71.0), value=0.1),
        Setting("train.lr=0.2", _finals(72.0, 73.0), value=0.2),
    ]
    write_sweep_plot(outcome)
    assert outcome.plot_file.read_bytes().startswith(b"\x89PNG")
    assert outcome.plot_file.stem == outcome.json_file.stem


def _finals(knn: float, linear: float) -> dict[str, Accuracy]:
    return {"knn": Accuracy(knn, [knn]), "linear": Accuracy(linear, [linear])}


def test_one_value_is_not_plotted(tmp_path: Path) -> None:
    outcome = make_sweep(tmp_path, "train.lr=0.1,0.2", probes=("linear",))
    fake_result(outcome.requested_seeds[0], 70.0)
    write_sweep_plot(outcome)
    assert not outcome.plot_file.exists()


def test_without_matplotlib_there_is_no_plot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = make_sweep(tmp_path, "train.lr=0.1,0.2", probes=("linear",))
    for plan in outcome.requested_seeds:
        fake_result(plan, 70.0)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    write_sweep_plot(outcome)
    assert not outcome.plot_file.exists()
    assert capsys.readouterr().err.startswith("no plot: matplotlib and scikit-learn are not")
