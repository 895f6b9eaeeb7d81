"""A run that is measured again keeps its earlier results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fedssl
from fedssl.core.files import integrity
from fedssl.runs.summary import find_runs, summarise
from tests.factories import bright_dataset, make_experiment


def _run(folder: Path, quiet: bool = True, **probe: Any) -> fedssl.Run:
    experiment = make_experiment(probe=probe)
    return fedssl.run(experiment, folder, "cpu", dataset=bright_dataset(), quiet=quiet)


def _add_picture(folder: Path) -> None:
    (folder / "picture.png").write_bytes(b"of the first measurement")
    integrity.record_hashes(folder, ["picture.png"])


def _files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_results_with_other_settings_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The earlier files have the same bytes, and results.json the settings it was made with."""
    run = _run(tmp_path, k=5)
    _add_picture(tmp_path)
    first = (tmp_path / "results.json").read_bytes()
    capsys.readouterr()
    again = _run(tmp_path, quiet=False, k=3)
    kept = tmp_path / "earlier" / "1"
    expected = f"measuring the run again, without training; earlier results: {kept}\n"
    assert expected in capsys.readouterr().err
    assert _files(kept) == sorted([integrity.NAME, *integrity.OUTPUTS])
    assert (kept / "results.json").read_bytes() == first
    assert json.loads(first)["probe"]["k"] == 5
    assert again.results["probe"]["k"] == 3
    assert not (tmp_path / "picture.png").exists()
    assert run.rounds == again.rounds


def test_settings_that_change_back_and_forth_keep_each_result_once(tmp_path: Path) -> None:
    for k in (5, 3, 5, 3, 5):
        _run(tmp_path, k=k)
    assert _files(tmp_path / "earlier") == ["1"]


def test_results_of_an_interrupted_measurement_are_replaced(tmp_path: Path) -> None:
    """The same settings, but a file is missing: the run is measured again as before."""
    _run(tmp_path, picture=True)
    (tmp_path / "picture.png").unlink()
    _run(tmp_path, picture=True)
    assert (tmp_path / "picture.png").is_file()
    assert not (tmp_path / "earlier").exists()


def test_a_longer_run_keeps_the_results_of_the_shorter_one(tmp_path: Path) -> None:
    _run(tmp_path)
    experiment = make_experiment(rounds=3)
    fedssl.run(experiment, tmp_path, "cpu", dataset=bright_dataset(), quiet=True)
    assert json.loads((tmp_path / "earlier/1/results.json").read_text())["rounds"] == 2


def test_lists_of_runs_use_the_current_results(tmp_path: Path) -> None:
    _run(tmp_path / "run", k=5)
    _run(tmp_path / "run", k=3)
    (folder,) = find_runs(tmp_path)
    assert summarise(folder).results["knn_settings"]["k"] == 3
