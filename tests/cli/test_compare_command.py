"""fedssl compare."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from error_messages import raises
from fake_runs import fake_run

from fedssl.cli.comparison import compare_runs
from fedssl.core.errors import ConfigError
from fedssl.core.files.checked_lines import append

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with runs of two temperatures, one of them with two seeds."""
    monkeypatch.chdir(tmp_path)
    fake_run(Path("runs/a"), correct=(1, 1, 0, 0))
    fake_run(Path("runs/b"), "seed=1", correct=(1, 0, 1, 1))
    fake_run(Path("runs/c"), "method.temperature=0.05", correct=(1, 1, 1, 1))
    return tmp_path


def test_the_table_has_a_row_for_each_setting(folder: Path, cli: Cli) -> None:
    """The first row is correct for 50% and 75%; the second for 100%, with the seed of 50%."""
    code, out, err = cli("compare", "runs", "--out", "both.png")
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines()]
    assert ["temperature", "0.5", "2", "50.0", "±", "0.0", "62.5", "±", "17.7", "6", "s"] in rows
    (second,) = [row for row in rows if row[:2] == ["temperature", "0.05"]]
    assert second[2:6] == ["1", "50.0", "100.0", "+50.0"]
    assert "on the same 4 test images" in out
    assert out.splitlines()[-1] == "picture  both.png"
    assert Path("both.png").read_bytes().startswith(b"\x89PNG")


def test_json(folder: Path, cli: Cli) -> None:
    code, out, _ = cli("compare", "runs/c", "runs/a", "runs/c", "--json")
    assert code == 0
    values = json.loads(out)
    assert (values["test_images"], values["swept"]) == (4, "method.temperature")
    assert values["picture"] == "compare.png"
    assert [group["runs"] for group in values["groups"]] == [["runs/c"], ["runs/a"]]
    first, second = values["groups"]
    assert second["linear"]["gain"]["estimate"] == -50.0
    assert second["linear"]["gain_by_seed"] == [-50.0]
    assert second["conclusion"].startswith("temperature 0.5: no clear difference from temperature")
    # The first row is not compared with itself.
    for probe in ("knn", "linear"):
        assert (first[probe]["gain"], first[probe]["gain_by_seed"]) == (None, None)
    assert first["conclusion"] is None
    assert values["groups"][1]["settings"] == {"method.temperature": 0.5}


def test_seeds_of_one_setting_have_no_gain(folder: Path, cli: Cli) -> None:
    code, out, _ = cli("compare", "runs/a", "runs/b")
    assert code == 0
    assert "simclr × fedavg × star" in out
    assert "gain" not in out.lower()
    assert "difference" not in out


def test_a_sentence_concludes_each_row_after_the_first(folder: Path, cli: Cli) -> None:
    fake_run(Path("runs/d"), "method.temperature=1.0", correct=(1, 1, 1, 0))
    code, out, _ = cli("compare", "runs")
    assert code == 0
    sentences = [line for line in out.splitlines() if " points by the linear probe" in line]
    assert [sentence.partition(" points")[0] for sentence in sentences] == [
        "temperature 0.05: no clear difference from temperature 0.5: +50.0",
        "temperature 1: no clear difference from temperature 0.5: +25.0",
    ]


def test_the_gain_over_clients_alone(tmp_path: Path, cli: Cli) -> None:
    """3 of 4 images instead of half of the clients on each: 25 points; the other run has none.

    Bonett and Price: differences 1/2, 1/2, 1/2, -1/2, so 1 / 6, variance (3 / 6 - 1 / 36) / 6.
    """
    fake_run(tmp_path / "a", correct=(1, 1, 1, 0), alone=(0.5, 0.5, 0.5, 0.5))
    fake_run(tmp_path / "b", "method.temperature=0.05")
    code, out, _ = cli("compare", str(tmp_path), "--out", str(tmp_path / "both.png"))
    assert code == 0
    assert "over clients alone, linear" in out
    assert "+25.0 (-38.3 … +71.7)" in out
    assert "over its own clients that train alone, by the linear probe" in out
    code, out, _ = cli("compare", str(tmp_path), "--json", "--out", str(tmp_path / "both.png"))
    with_alone, without = json.loads(out)["groups"]
    margin = 100 * 1.959964 * math.sqrt((3 / 6 - 1 / 36) / 6)
    assert with_alone["linear"]["gain_over_alone"]["low"] == pytest.approx(
        100 / 6 - margin, abs=1e-3
    )
    assert without["linear"]["gain_over_alone"] is None


def test_without_matplotlib_there_is_only_the_table(
    folder: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = cli("compare", "runs")
    assert code == 0
    assert "temperature 0.05" in out
    assert "no picture: matplotlib and scikit-learn are not installed: in a clone" in err
    assert not Path("compare.png").exists()


def test_unfinished_runs_in_a_folder_are_left_out(folder: Path, cli: Cli) -> None:
    fake_run(Path("runs/d"), "method.temperature=2.0", knn=(None, None), rounds=2)
    code, out, err = cli("compare", "runs")
    assert code == 0
    assert "temperature 2" not in out
    assert err == "runs/d is left out: it has no accuracy (stopped, 2 of 3)\n"


def _unlabelled(folder: Path, ranks: list[float], *changes: str) -> None:
    """Write a run without accuracies, whose last round has these effective ranks."""
    fake_run(folder, *changes, knn=(None, None), table={})
    clients = [{"client": str(n), "effective_rank": rank} for n, rank in enumerate(ranks)]
    clients.append({"client": "dropped", "effective_rank": 99.0, "dropped": "NaN"})
    line = {"round": 3, "seconds": 2.0, "knn": None, "clients": clients}
    append(folder / "rounds.jsonl", 2, json.dumps(line).encode() + b"\n")


def test_runs_without_labels_are_compared_by_their_last_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    """Medians over clients that were not dropped: of 10, 11 and 14, and of 5 and 6."""
    monkeypatch.chdir(tmp_path)
    _unlabelled(Path("runs/a"), [10.0, 14.0, 11.0])
    _unlabelled(Path("runs/b"), [5.0, 6.0], "train.lr=0.1")
    _, out, _ = cli("compare", "runs/a", "runs/b", "--json")
    rows = json.loads(out)["label_free"]
    assert [(row["run"], row["effective_rank"]) for row in rows] == [
        ("runs/a", 11.0),
        ("runs/b", 5.5),
    ]
    code, out, _ = cli("compare", "runs/a", "runs/b")
    assert code == 0
    assert "effective rank" in out
    assert "no accuracy is compared" in out
    assert not Path("compare.png").exists()


def test_incomparable_runs(folder: Path) -> None:
    Path("empty").mkdir()
    for paths in (["runs/a"], ["runs/a", "empty"], ["runs/a", "missing"], ["runs/a", "runs/a"]):
        with raises(ConfigError):
            compare_runs(list(map(Path, paths)), Path("compare.png"), as_json=False)
