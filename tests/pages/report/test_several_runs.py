"""Reports on several runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from error_messages import raises
from fake_runs import fake_run

from fedssl.core.console import ignore_message
from fedssl.core.errors import ConfigError
from fedssl.pages.report.report import report
from fedssl.runs.compare import conclusion, group_runs
from fedssl.runs.summary import summarise


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _page(*folders: Path) -> str:
    return report(folders, notify=ignore_message).read_text("utf-8")


def _charts(page: str) -> dict[str, Any]:
    found = re.search(r'id="report-data">(.*?)</script>', page)
    assert found is not None
    charts: dict[str, Any] = json.loads(found[1])["charts"]
    return charts


def test_the_page_has_the_conclusion_of_compare(tmp_path: Path) -> None:
    folders = [fake_run(tmp_path / "a"), fake_run(tmp_path / "b", "train.lr=0.01")]
    page = _page(*folders)
    first, second = group_runs([summarise(folder) for folder in folders])
    text = re.sub(r"<[^>]*>", "", page)
    assert conclusion(first, second, ["knn", "linear"]) in text
    assert "2 settings, 2 runs compared" in text
    assert re.search(r"<code>train.lr</code></td><td>0.004</td><td>0.01</td>", page)
    assert (tmp_path / "report.html").is_file()


def test_seeds_are_a_band(tmp_path: Path) -> None:
    """kNN of 40 and 44 after round 2, 50 and 60 after round 3; the other setting has one seed."""
    folders = [
        fake_run(tmp_path / "a"),
        fake_run(tmp_path / "b", "seed=1", knn=(None, 44.0, 60.0)),
        fake_run(tmp_path / "c", "train.lr=0.01"),
    ]
    chart = _charts(_page(*folders))["accuracy"]
    values = {line["label"]: line["values"] for line in chart["series"]}
    assert chart["x"] == [2, 3]
    assert values == {
        "lr 0.004": [42, 55],
        "lr 0.004, lowest seed": [40, 50],
        "lr 0.004, highest seed": [44, 60],
        "lr 0.01": [40, 50],
    }
    assert chart["bands"] == [{"high": 2, "low": 1}]


def test_seeds_of_one_setting_have_one_verdict(tmp_path: Path) -> None:
    page = _page(fake_run(tmp_path / "a"), fake_run(tmp_path / "b", "seed=1"))
    assert "2 seeds of simclr × fedavg × star" in page
    assert "50.0% by the linear probe (mean of 2 seeds, std 0.0)" in page


def test_runs_that_were_measured_differently_are_refused(tmp_path: Path) -> None:
    folders = [fake_run(tmp_path / "a"), fake_run(tmp_path / "b", "probe.k=5")]
    with raises(ConfigError):
        report(folders, notify=ignore_message)


def test_runs_without_labels_are_compared_by_metrics(tmp_path: Path) -> None:
    folders = [
        fake_run(tmp_path / "a", table={}),
        fake_run(tmp_path / "b", "train.lr=0.01", table={}),
    ]
    for folder, rank in zip(folders, (5.0, 7.5), strict=True):
        (folder / "rounds.jsonl.copy").unlink()
        client = {"client": "a", "effective_rank": rank}
        line = {"round": 3, "seconds": 1.0, "knn": None, "clients": [client]}
        (folder / "rounds.jsonl").write_text(json.dumps(line) + "\n")
    page = _page(*folders)
    assert "No run has labelled test images." in page
    assert '<td class="number">7.5</td>' in page
    assert _charts(page)["effective_rank"]["series"][1]["values"] == [7.5]


def test_names_of_directories_that_repeat_are_paths(tmp_path: Path) -> None:
    for name in ("x/run", "y/run"):
        (tmp_path / name).parent.mkdir()
    page = _page(
        fake_run(tmp_path / "x/run"),
        fake_run(tmp_path / "y/run", "seed=1"),
        fake_run(tmp_path / "z", "seed=2"),
    )
    assert f"<td>{tmp_path / 'x/run'}</td>" in page
    assert "<td>z</td>" in page
