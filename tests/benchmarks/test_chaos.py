"""Which outcomes of `make chaos` count as failures."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.chaos import RESULTS, failures
from benchmarks.laboratory import logged_rounds, saved_rounds


def test_only_wrong_outcomes_are_failures() -> None:
    """Two runs with other weights, one traceback and four flips that were used or unnoticed."""
    result = {
        "kills": {"runs_different": 2, "runs_equal_to_the_uninterrupted": 5},
        "disk": {
            "outcomes": {
                "file size limit": {
                    "stopped with exit code 4, then resumed to equal weights": 3,
                    "traceback": 1,
                },
                "small file system": {"not run (it cannot be mounted)": 3},
            }
        },
        "flips": {"outcomes": {"repaired": 9, "used": 3, "unnoticed": 1}},
    }
    assert failures(result) == 2 + 1 + 4
    assert failures({"kills": {"runs_different": 0}}) == 0


def test_rounds_are_counted_from_whole_lines_and_checkpoints(tmp_path: Path) -> None:
    assert (logged_rounds(tmp_path), saved_rounds(tmp_path)) == (0, 0)
    (tmp_path / "rounds.jsonl").write_text('{"round": 1}\n{"round": 2}\n{"rou')
    (tmp_path / "checkpoints").mkdir()
    for name in ("00000.json", "00001.json"):
        (tmp_path / "checkpoints" / name).touch()
    assert (logged_rounds(tmp_path), saved_rounds(tmp_path)) == (2, 1)


def test_the_figures_in_results_are_without_failures() -> None:
    result = json.loads(RESULTS.read_text("utf-8"))
    assert result["kills"]["kills"] >= 50
    assert result["failures"] == failures(result) == 0
