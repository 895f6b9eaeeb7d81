"""The page of results: common settings are stated once, differing ones have a column."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from fedssl.experiment.experiment import Experiment
from fedssl.experiment.lookup import load_values
from fedssl.experiment.overrides import merge_changes
from fedssl.paper_tables.published import Cell

SCRIPT = Path(__file__).parents[1] / "docs" / "make_results.py"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the script's functions, which read results in tmp_path."""
    monkeypatch.syspath_prepend(SCRIPT.parent)  # as Python has it for a script
    found = runpy.run_path(str(SCRIPT))
    monkeypatch.setattr("stored_runs.RESULTS", tmp_path)
    return found


def write(
    folder: Path,
    rounds: int = 1,
    epochs: int = 1,
    rank: float = 1.0,
    knn: float = 50.0,
    topology: str = "star",
) -> None:
    folder.mkdir(parents=True)
    experiment = f"""seed = 0
rounds = {rounds}
clients = 5
[partition]
name = "classes"
per_client = 2
[topology]
name = "{topology}"
[data]
name = "cifar10"
[method]
name = "byol"
backbone = "resnet18"
[algorithm]
name = "fedavg"
[train]
epochs = {epochs}
batch = 128
"""
    (folder / "experiment.toml").write_text(experiment)
    client = {"client": "0", "dropped": None, "effective_rank": rank}
    lines = [{"round": i + 1, "knn": knn, "clients": [client]} for i in range(rounds)]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    results = {
        "environment": {"device": "cuda: H200"},
        "table": {"this run": {"knn": {"mean": knn}}},
    }
    (folder / "results.json").write_text(json.dumps(results))


def page_text(script: dict[str, Any]) -> str:
    return "\n".join(
        line for name, runs in script["groups"]() for line in script["group"](name, runs)
    )


def test_common_settings_are_stated_once(script: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path / "g" / "a")
    write(tmp_path / "g" / "b")
    (tmp_path / "g" / "unfinished").mkdir()
    (tmp_path / "g" / "unfinished" / "rounds.jsonl").write_text("")
    text = page_text(script)
    assert (
        "\n5 clients, 2 classes each, resnet18, 1 round × 1 epoch, H200. Accuracy in percent.\n"
        in text
    )
    assert "| run |  | kNN | linear |" in text
    assert "| a | byol × fedavg, seed 0 | 50.0 |  |" in text


def test_differing_settings_have_a_column(script: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path / "g" / "a", rounds=2)
    write(tmp_path / "g" / "b", rounds=1200, epochs=5, topology="centralized")
    text = page_text(script)
    assert "\nresnet18, H200. Accuracy in percent.\n" in text
    assert "| run |  | clients | length | kNN | linear |" in text
    assert (
        "| a | byol × fedavg, seed 0 | 5 clients, 2 classes each | 2 rounds × 1 epoch | 50.0 |  |"
        in text
    )
    assert "| b | byol × fedavg, seed 0 | centralized | 1,200 rounds × 5 epochs | 50.0 |  |" in text


def test_probes_of_a_run(script: dict[str, Any], tmp_path: Path) -> None:
    """L-BFGS with all labels has a column; a probe that failed has its error, not a figure."""
    write(tmp_path / "g" / "a")
    write(tmp_path / "g" / "b")
    lbfgs = {"probe": "linear", "solver": "lbfgs", "accuracy": 81.25, "labelled": 9}
    few = {**lbfgs, "labels": 0.1, "accuracy": 10.0}
    failed = {"probe": "semi", "labels": 0.1, "error": "no memory"}
    (tmp_path / "g" / "a" / "probes.json").write_text(json.dumps([few, lbfgs, failed]))
    (tmp_path / "g" / "b" / "probes.json").write_text(json.dumps([few]))
    text = page_text(script)
    assert "| run |  | kNN | linear | linear, L-BFGS |" in text
    assert "| a | byol × fedavg, seed 0 | 50.0 |  | 81.2 |" in text
    assert "| b | byol × fedavg, seed 0 | 50.0 |  |  |" in text
    assert "| a | semi | labels = 0.1 |  | failed | no memory |" in text
    assert "| a | linear | solver = lbfgs | 9 | 81.25 |  |" in text


def test_scores_of_runs_in_all_folders(script: dict[str, Any], tmp_path: Path) -> None:
    """Ranks 1 2 3 with 30 20 10: ρ = −1, as in 2 of 6 orders."""
    for folder, rank in (("g/a", 1.0), ("g/b", 2.0), ("h/a", 3.0)):
        write(tmp_path / folder, rank=rank, knn=40 - 10 * rank)
    text = "\n".join(script["label_free"]())
    assert (
        "| cifar10, resnet18, batches of 128, byol | effective_rank (more is better) | kNN | 3 | −1.00 | 33.3% |"
        in text
    )
    assert "over the runs above, 3 runs in all" in text
    assert "alignment is in 0" in text


def test_runs_are_compared_with_published_results(script: dict[str, Any], tmp_path: Path) -> None:
    """Two seeds of FedEMA's default run, one of them in bf16, with another file name for the same
    images and measured by the authors' probe too; a shorter run, or one with a smaller backbone,
    has no verdict, one with other public images has a note, and one with another rate belongs to no
    table.
    """
    plain = {"seed": 0}
    named = {
        "seed": 1,
        "train.precision": "bf16",
        "probe.every": 5,
        "data": {"name": "npz", "path": "cifar10.npz"},
    }
    for folder, recipe, changes, linear in (
        ("g/a", "fedema-cifar10-noniid", plain, 83.0),
        ("g/b", "fedema-cifar10-noniid", named, 85.0),
        ("g/short", "fedsimclr-cifar10-noniid-short", plain, 70.0),
        (
            "g/small",
            "fedu-ablation-target-to-both",
            {"method.backbone": "resnet18", "rounds": 100},
            61.0,
        ),
        ("g/public", "fedca-cnn5-cifar10-noniid", {"public.name": "held-out"}, 64.0),
        ("g/other", "fedema-cifar10-noniid", {"train.lr": 0.1}, 10.0),
        ("fedbyol-cifar10-short/a", "fedbyol-cifar10-noniid-short", plain, 10.0),
    ):
        write(tmp_path / folder)
        experiment = Experiment.from_dict(merge_changes(load_values(recipe), changes))
        (tmp_path / folder / "experiment.toml").write_text(experiment.to_toml())
        results = {
            "date": "2026-01-02",
            "environment": {"device": "cuda: H200"},
            "table": {"this run": {"linear": {"mean": linear}}},
        }
        (tmp_path / folder / "results.json").write_text(json.dumps(results))
    easyfl = {"probe": "linear", "protocol": "easyfl", "accuracy": 82.5, "labelled": 9}
    (tmp_path / "g" / "b" / "probes.json").write_text(json.dumps([easyfl]))
    text = "\n".join(script["published"]())
    row = "| FedEMA (autoscaler, τ = 0.7) | CIFAR-10, non-IID | 100 rounds × 5 epochs | 2 |"
    compared = "2026-01-02 | 83.34±0.39 | 84.00 ± 1.41 |  | 82.50 | +0.66 | **reproduced** |"
    assert f"{row} {compared}" in text
    shorter = "| 100 rounds × 1 epoch (paper: 100 rounds × 5 epochs) | 1 | 2026-01-02 | 78.09±0.14 | 70.00 |  |  |  |"
    missing = "not run with the paper's budget (25M images) |"
    assert f"| FedSimCLR | CIFAR-10 {shorter} {missing}" in text
    not_run = "|  |  |  | 55.58±0.13 |  |  |  |  | not run (25M images) |"
    assert f"| FedSimCLR | CIFAR-100 {not_run}" in text
    smaller = "100 rounds × 1 epoch (paper: 800 rounds × 1 epoch, resnet50) | 1 | 2026-01-02"
    cost = "not run with the paper's budget (40M images)"
    assert (
        f"| target → both | global predictor | {smaller} | 82.32 | 61.00 |  |  |  | {cost} |"
        in text
    )
    public = "20 rounds × 5 epochs, public images held out of the training images | 1 | 2026-01-02"
    assert f"| {public} | 63.02 | 64.00 |  |  | +0.98 | **reproduced** |" in text
    assert "CIFAR-10, IID: 90.46±0.34; CIFAR-100, IID: 65.54±0.47" in text
    assert " 10.00 |" not in text


@pytest.mark.parametrize(
    ("published", "difference", "verdict"),
    [
        ("80.0", 1.0, "**reproduced**"),
        ("80.0", 1.1, "**better**"),
        ("80.0", -1.1, "**worse**"),
        ("80.0±2.5", -2.4, "**reproduced**"),
        ("80.0±0.1", 0.9, "**reproduced**"),
    ],
)
def test_a_verdict_allows_one_point_or_the_published_spread(
    published: str, difference: float, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    page = runpy.run_path(str(SCRIPT.with_name("published.py")))
    cell = Cell("row", "column", "demo", "linear", published=published)
    assert page["_verdict"](difference, cell) == verdict


def test_no_client_of_a_stored_run_was_dropped() -> None:
    """So runs with other limits of the guard are runs of the same cell."""
    logs = sorted((SCRIPT.parents[1] / "results").glob("*/*/rounds.jsonl"))
    assert len(logs) > 20
    for log in logs:
        for line in log.read_text("utf-8").splitlines():
            dropped = [client.get("dropped") for client in json.loads(line)["clients"]]
            assert not any(dropped), log
