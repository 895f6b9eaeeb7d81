"""`fedssl report` writes pages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fake_runs import fake_run

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_report_on_one_run_is_in_its_directory(cli: Cli) -> None:
    fake_run(Path("runs/a"))
    code, out, _ = cli("report", "runs/a", "--no-images")
    assert (code, out) == (0, "report  runs/a/report.html\n")
    assert "<title>a – fedssl report</title>" in Path("runs/a/report.html").read_text("utf-8")


def test_the_report_on_several_runs_is_in_the_current_folder(cli: Cli) -> None:
    fake_run(Path("runs/a"))
    fake_run(Path("runs/b"), "train.lr=0.01")
    assert cli("report", "runs")[:2] == (0, "report  report.html\n")
    assert cli("report", "runs", "-o", "both.html")[:2] == (0, "report  both.html\n")
    assert Path("both.html").read_bytes() == Path("report.html").read_bytes()


def test_a_file_of_another_kind_is_not_written(cli: Cli) -> None:
    fake_run(Path("runs/a"))
    code, _, err = cli("report", "runs/a", "-o", "a.pdf")
    assert code == 2
    assert "the name must end in .html" in err
