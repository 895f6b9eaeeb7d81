"""A run that is measured again keeps its earlier results."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import fedssl
from fedssl.core.files import integrity
from fedssl.data.python_images import from_python
from fedssl.evaluation.evaluate import Evaluation
from fedssl.runs.summary import find_runs, summarise
from tests.factories import bright_dataset, bright_pixels, make_experiment


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


def test_a_missing_picture_is_drawn_without_measuring(tmp_path: Path) -> None:
    """The results keep their bytes, with the date at which they were measured."""
    _run(tmp_path, picture=True)
    results = (tmp_path / "results.json").read_bytes()
    (tmp_path / "picture.png").unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(Evaluation, "measure")
        _run(tmp_path, picture=True)
    assert (tmp_path / "picture.png").is_file()
    assert (tmp_path / "results.json").read_bytes() == results
    assert not (tmp_path / "earlier").exists()


@pytest.mark.parametrize("missing", ["matplotlib", "labels"])
def test_a_run_that_can_have_no_picture_is_finished(
    missing: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = bright_dataset()
    if missing == "matplotlib":
        monkeypatch.setitem(sys.modules, "matplotlib", None)
    else:
        data = from_python(bright_pixels(24)[0])
    experiment = make_experiment({"partition.name": "iid"}, probe={"picture": True})
    for _ in range(2):
        capsys.readouterr()
        fedssl.run(experiment, tmp_path / "run", "cpu", dataset=data)
    assert not (tmp_path / "run" / "picture.png").exists()
    printed = capsys.readouterr().err
    assert "was finished already" in printed
    assert "no picture" not in printed


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
