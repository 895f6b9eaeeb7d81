"""Label-free scores and accuracy: ranks by hand and by scipy, and which runs are compared."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from error_messages import raises
from matplotlib.backends.backend_agg import FigureCanvasAgg
from tiny_runs import Go

import fedssl
from benchmarks import label_free_scores
from benchmarks.label_free_scores import Scores, correlations, describe_run, table_rows
from benchmarks.rank_correlation import chance_share, ranks, spearman
from benchmarks.run_accuracies import final_accuracies
from fedssl.analysis import AnalysisOutput, run_analysis
from fedssl.core.errors import ConfigError
from fedssl.data import from_python


def analyse(runs: list[fedssl.Run], last: int = 10, **options: Any) -> AnalysisOutput:
    return run_analysis("scores", Scores(last=last), runs, **options)


def test_ranks_and_ties() -> None:
    """5 is third; the two 2s share places 1 and 2."""
    assert ranks([2.0, 5.0, 2.0]).tolist() == [1.5, 3.0, 1.5]


def test_spearman_by_hand() -> None:
    """Ranks 1 2 3 4 and 1 3 2 4: differences 0 1 1 0, 1 − 6·2 / (4·15) = 0.8."""
    assert spearman([1, 20, 300, 4000], [0.1, 0.3, 0.2, 0.4]) == pytest.approx(0.8)
    assert spearman([1, 2, 3], [9, 8, 0]) == pytest.approx(-1)
    assert spearman([1, 2], [1, 2]) is None
    assert spearman([1, 1, 1], [1, 2, 3]) is None


def test_against_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    draw = np.random.default_rng(0)
    for n in (3, 5, 40):
        x, y = draw.integers(0, 6, n).astype(float).tolist(), draw.normal(size=n).tolist()
        assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic)
    assert chance_share(x, y) == pytest.approx(
        stats.spearmanr(x, y).pvalue, abs=0.02
    )  # of 40 values: close to Student's t


def test_the_share_of_random_orders_with_such_a_correlation() -> None:
    """Of the 6 orders of three values, 2 have ρ = ±1. Of the 24 orders of four, 2 have ρ = ±1 and 6
    have ρ = ±0.8, since one pair of neighbours is exchanged: 8 in all. For many values a sample of
    orders is drawn, which hardly ever contains another perfect one.
    """
    assert chance_share([1, 2, 3], [4, 5, 6]) == pytest.approx(2 / 6)
    assert chance_share([1, 2, 3, 4], [1, 2, 3, 4]) == pytest.approx(2 / 24)
    assert chance_share([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(8 / 24)
    many = [float(i) for i in range(20)]
    assert 0 < chance_share(many, many) < 0.001


def experiment(**changes: Any) -> dict[str, Any]:
    plain = {
        "data": {"name": "cifar10"},
        "method": {"name": "byol", "backbone": "resnet18"},
        "train": {"batch": 128},
    }
    return {key: value | changes.get(key, {}) for key, value in plain.items()}


def client(rank: float | None, **more: Any) -> dict[str, Any]:
    return {"client": "0", "dropped": None, "effective_rank": rank, **more}


def test_a_run_by_hand() -> None:
    """The last two of three rounds count, in which clients have ranks of 2, 4 and 9: 5 on average.

    One client was dropped and has no rank.
    """
    rounds = [
        {"clients": [client(100.0)]},
        {"clients": [client(2.0, alignment=None), {"client": "1", "dropped": "too late"}]},
        {"clients": [client(4.0), client(9.0)]},
    ]
    found = describe_run("a", experiment(), rounds, {"knn": 50.0, "semi": 7.0}, last=2)
    assert found == {
        "run": "a",
        "setting": "cifar10, resnet18, batches of 128",
        "method": "byol",
        "scores": {"effective_rank": 5.0},
        "accuracies": {"knn": 50.0},
    }
    other = experiment(data={"name": "npz", "path": "there/cifar10.npz", "holdout": 500})
    assert (
        describe_run("b", other, rounds, {})["setting"]
        == "there/cifar10.npz, 500 held out, resnet18, batches of 128"
    )


def some(method: str, rank: float, knn: float, **more: Any) -> dict[str, Any]:
    made = describe_run(
        "r",
        experiment(method={"name": method}, **more),
        [{"clients": [client(rank)]}],
        {"knn": knn},
    )
    return {**made, "run": f"{method}{rank}"}


def test_runs_with_other_images_are_distinguished() -> None:
    tables = [
        {"name": "folder", "path": "photos", "layout": "classes", "size": 32, "channels": 3},
        {"name": "folder", "path": "photos", "layout": "classes", "size": 64, "channels": 3},
        {"name": "folder", "path": "photos", "layout": "classes", "size": 32, "channels": 1},
        {
            "name": "folder",
            "path": "photos",
            "layout": "classes",
            "size": 32,
            "channels": 3,
            "test": "a",
        },
        {"name": "stl10", "part": "train"},
        {"name": "stl10", "part": "both"},
    ]
    settings = {
        describe_run("a", experiment() | {"data": table}, [], {})["setting"] for table in tables
    }
    assert len(settings) == len(tables)


def test_runs_on_other_test_images_of_the_same_name_are_not_compared(go: Go, images: Any) -> None:
    """Images from Python have no name: three runs have the same test images, one has others."""
    other = from_python(images(48, 0), images(24, 2))
    runs = [*(go(f"r{i}", seed=i) for i in range(3)), go("other", other, seed=3)]
    found = analyse(runs).results["correlations"]
    assert sorted({c["setting"]: c["runs"] for c in found}.values()) == [1, 3]


def test_only_comparable_runs_are_compared() -> None:
    """Over both methods the ranks 1 2 3 4 5 correspond to 3 2 1 4 5 (ρ = 0.6), within BYOL 1 2 3 to
    3 2 1 (ρ = −1). Two runs of SimCLR are too few, and another batch size is another setting.
    """
    rows = [
        some("byol", 1, 30),
        some("byol", 2, 20),
        some("byol", 3, 10),
        some("simclr", 4, 40),
        some("simclr", 5, 50),
    ]
    rows.append(some("byol", 99, 0, train={"batch": 64}))
    found = list(correlations(rows))
    assert [(c["setting"][-3:], c["method"], c["runs"]) for c in found] == [
        ("128", None, 5),
        ("128", "byol", 3),
        (" 64", "byol", 1),
    ]
    assert [c["rho"] for c in found] == [pytest.approx(0.6), pytest.approx(-1), None]
    assert [line[3:5] for line in table_rows(found)] == [
        ["5", "+0.60"],
        ["3", "−1.00"],
        ["1", "too few or equal"],
    ]
    assert list(correlations([{**rows[0], "accuracies": {}}])) == []


def test_runs_are_read_and_drawn(go: Go) -> None:
    runs = [go(f"r{i}", **{"train.lr": 0.01 * (i + 1)}) for i in range(3)]
    output = analyse(runs, last=1)
    first = output.results["runs"][0]
    last = runs[0].rounds[-1]["clients"]
    assert first["scores"]["uniformity"] == pytest.approx(sum(c["uniformity"] for c in last) / 3)
    assert first["accuracies"] == {"knn": runs[0].results["table"]["this run"]["knn"]["mean"]}
    assert {c["score"] for c in output.results["correlations"]} == {*first["scores"]}
    assert {c["runs"] for c in output.results["correlations"]} == {3}
    assert "less is better" in str(output.summary.rows)
    assert output.png.read_bytes()[:4] == b"\x89PNG"


def cell(run: fedssl.Run, name: str, **more: Any) -> None:
    """Write a table's measurement of a run."""
    (run.dir / "measures").mkdir(exist_ok=True)
    values = {"experiment": run.experiment.hash(), "settings": {}, "on": None, "value": 61.0} | more
    (run.dir / "measures" / f"linear-{name}.json").write_text(json.dumps(values))


def test_a_cell_of_a_table_brings_its_linear_probe(go: Go) -> None:
    """Measurements count if they are of the same experiment on its own images."""
    run = go()
    knn = {(5, 0.1): run.results["table"]["this run"]["knn"]["mean"]}
    cell(run, "a", experiment="0" * 64)
    cell(run, "b", on="stl10")
    assert final_accuracies(run) == {"linear": {}, "knn": knn}
    cell(run, "c")
    cell(run, "d", settings={"labels": 0.01}, value=12.5)
    usual = (0, "fedema", 5, None, None, 0.0, "protocol")
    assert final_accuracies(run) == {"linear": {usual: 61.0, (0.01, *usual[1:]): 12.5}, "knn": knn}


def test_accuracies_of_other_probe_settings_are_not_compared(go: Go) -> None:
    """Two runs have a linear probe with few labels, and one of these also has the default one. The
    third has that of another paper, so that it counts for kNN only. The fourth has another k.
    """
    runs = [go(f"r{i}", seed=i) for i in range(3)]
    cell(runs[0], "a", settings={"labels": 0.01}, value=11.5)
    cell(runs[1], "a", settings={})
    cell(runs[1], "b", settings={"labels": 0.01}, value=12.5)
    cell(runs[2], "a", settings={"protocol": "ccl"})
    messages: list[str] = []
    output = analyse([*runs, go("r3", seed=3, **{"probe.k": 3})], notify=messages.append)
    assert [each["accuracies"].get("linear") for each in output.results["runs"]] == [
        11.5,
        12.5,
        None,
        None,
    ]
    assert ["knn" in each["accuracies"] for each in output.results["runs"]] == [
        True,
        True,
        True,
        False,
    ]
    assert output.results["measured"]["linear"].startswith("labels = 0.01, protocol = fedema")
    assert [line.partition(":")[0] for line in messages] == [
        "r2 is left out for linear",
        "r3 is left out for kNN",
    ]
    assert "labels = 0.01" in str(output.summary.notes)


def test_nothing_to_compare(go: Go) -> None:
    run = go()
    (run.dir / "results.json").unlink()
    messages: list[str] = []
    with raises(ConfigError):
        analyse([run], notify=messages.append)
    assert messages == [
        "run is left out: it has no final accuracy, as it is not finished or has no labels"
    ]


def test_fewer_than_three_runs_are_refused(go: Go) -> None:
    with raises(ConfigError):
        analyse([go()])


def test_the_command_refuses_what_is_not_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "scores")
    monkeypatch.setattr(sys, "argv", ["label_free_scores", str(tmp_path), "--out", out])
    with pytest.raises(SystemExit) as end:
        label_free_scores.main()
    assert end.value.code == 2
    assert f"{tmp_path} is not a run directory" in capsys.readouterr().err


def test_the_legend_is_below_all_panels_with_every_name_once(go: Go) -> None:
    output = analyse([go(f"r{i}", **{"train.lr": 0.01 * (i + 1)}) for i in range(3)])
    drawn = Scores().draw(output.results)
    assert [axes.get_legend() for axes in drawn.axes] == [None] * len(drawn.axes)
    (below,) = drawn.legends
    assert [text.get_text() for text in below.get_texts()] == ["byol"]
    FigureCanvasAgg(drawn).draw()  # computes the layout
    top = below.get_window_extent().y1
    assert all(axes.get_tightbbox().y0 >= top for axes in drawn.axes if axes.axison)


def test_the_command_writes_numbers_and_a_picture(
    go: Go,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs = [go(f"r{i}", **{"train.lr": 0.01 * (i + 1)}) for i in range(3)]
    dirs = [str(run.dir) for run in runs]
    out = tmp_path / "scores"
    arguments = ["label_free_scores", *dirs, "--out", str(out), "--last", "1"]
    monkeypatch.setattr(sys, "argv", arguments)
    label_free_scores.main()
    results = json.loads(out.with_suffix(".json").read_text())
    assert results["analysis"] == "scores"
    assert results["settings"] == {"last": 1}
    assert [row["run"] for row in results["runs"]] == ["r0", "r1", "r2"]
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "scores without labels, and accuracy" in printed
    assert f"wrote {out}.json" in printed
