"""The output of fedssl reproduce: the list of tables, progress lines, the live table, the end."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_results import BAD, GOOD, PRIVATE, fake_result, make_outcome
from rich.console import Console
from typer.testing import CliRunner

from fedssl.cli.main import app
from fedssl.cli.table_catalogue import catalogue
from fedssl.cli.table_progress import Lines, Screen, TimeEstimate, print_outcome, training_title
from fedssl.paper_tables.plan import plan_seeds
from fedssl.paper_tables.published import Cell, tables
from fedssl.paper_tables.sweep import sweep_table
from fedssl.paper_tables.table_results import Outcome, Workspace


def invoke(*words: str) -> Any:
    """Return the result of fedssl reproduce with these arguments."""
    return CliRunner().invoke(app, ["reproduce", *words])


def test_the_list_counts_cells_trainings_and_images() -> None:
    """FedEMA's Table 3: eleven rows of four cells and one of two, each 50,000 images × 100 rounds
    × 5 epochs; at mini scale CIFAR-10 and -100 are the same images, so that only FedU, whose μ
    differs, has four: 25."""
    sizes = {summary["table"]: summary for summary in catalogue("")}
    assert list(sizes) == list(tables())
    third = sizes["fedema-3"]
    assert (third["cells"], third["published"], third["trainings"]) == (46, 46, 46)
    assert third["image_passes"] == 46 * 25e6
    small = {summary["table"]: summary for summary in catalogue("-mini")}["fedema-3"]
    assert (small["trainings"], small["image_passes"]) == (25, 25 * 5000 * 10)
    assert sizes["decssl-1-right"]["trainings"] == 0
    assert sizes["decssl-1-right"]["cannot"] == 6


def test_listing() -> None:
    listed = invoke("--list")
    assert listed.exit_code == 0
    assert all(name in listed.output for name in tables())
    cells = json.loads(invoke("fedema-4", "--list", "--json").output)
    assert cells[0]["set"] == ["data.leave_out=0.01"]
    assert "the warehouse images are private" in invoke("decssl-1-right", "--list").output


def test_a_table_that_cannot_be_reproduced_is_not_a_failure(tmp_path: Path) -> None:
    ended = invoke("decssl-1-right", "--dir", str(tmp_path), "--seeds", "1")
    assert ended.exit_code == 0
    assert "not reproducible: the warehouse images are private" in ended.output
    assert (tmp_path / "decssl-1-right-paper.md").is_file()


def test_failures_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = make_outcome(tmp_path, GOOD, BAD, PRIVATE, seeds=1)
    fake_result(outcome.requested_seeds[0], 78.0)
    bad = outcome.requested_seeds[1]
    assert bad.training is not None
    assert bad.measure is not None
    outcome.problems[bad.training, bad.measure.file] = "no such images"
    print_outcome(outcome)
    output = capsys.readouterr().out
    assert "A, y: no such images" in output
    assert "−1.44" in output
    assert "79.44 ± 0.99" in output


def test_lines_for_the_begin_and_the_end_of_a_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Not requested: another figure of the same training.
    other = Cell("B", "x", GOOD.recipe, "linear", ("labels=100",))
    outcome = make_outcome(tmp_path, GOOD, other, seeds=1, requested=[GOOD])
    training = outcome.requested_seeds[0].training
    assert training is not None
    pool: Any = SimpleNamespace(running={training: time.monotonic()})
    lines = Lines()
    lines.update(outcome, pool)
    lines.update(outcome, pool)
    fake_result(outcome.requested_seeds[0], 78.0)
    lines.training_ended(outcome, training, {})
    begun, ended = capsys.readouterr().err.splitlines()
    assert begun == f"fedbyol-cifar10-noniid (A, x) seed 0: {training.folder}"
    assert ended == "fedbyol-cifar10-noniid (A, x) seed 0: linear 78.00 (1 of 1 cells)"


def test_the_title_of_a_training() -> None:
    """The row of a sweep has the settings; for a paper it is the first of its cells."""
    table = sweep_table("demo", ["algorithm.weights=uniform,size", "rounds=2"], ["knn", "linear"])
    planned = list(plan_seeds(table.cells, "", [0], Path("r"), torch.device("cpu")))
    outcome = Outcome(
        table, "as it is", planned, 1, table.cells, Workspace(Path("r"), Path("data"), "cpu")
    )
    titles = {}
    for plan in outcome.requested_seeds:
        assert plan.training is not None
        titles[training_title(outcome, plan.training)] = True
    assert list(titles) == [
        "demo (algorithm.weights=uniform) seed 0",
        "demo (algorithm.weights=size) seed 0",
    ]
    other = Cell("B", "x", GOOD.recipe, "linear", ("labels=100",))
    both = make_outcome(Path("r"), GOOD, other, seeds=1)
    training = both.requested_seeds[0].training
    assert training is not None
    assert training_title(both, training) == "fedbyol-cifar10-noniid (A, x and B, x) seed 0"


def test_some_cells_are_listed() -> None:
    """FedEMA's Table 3 has 46 cells, of which those of FedU are one row."""
    every = json.loads(invoke("fedema-3", "--list", "--json").output)
    some = json.loads(invoke("fedema-3", "--list", "--json", "--cells", "FedU, *").output)
    assert len(every) == 46
    assert len(some) == 4
    assert some == [cell for cell in every if cell["row"] == "FedU"]
    listed = invoke("fedema-3", "--list", "--cells", "FedU, *").output
    assert "FedU " in listed
    assert "FedSimCLR" not in listed
    for words, problem in (
        (["fedema-3", "--list", "--cells", "nosuch"], "no cell of fedema-3 matches nosuch"),
        (["--list", "--cells", "FedU"], "--cells needs a table; name one"),
    ):
        assert problem in str(invoke(*words).exception)


def test_the_live_table_shows_round_and_time_left(tmp_path: Path) -> None:
    """50 of 100 rounds took ten seconds, and another training is to come: 30 seconds left."""
    outcome = make_outcome(tmp_path, GOOD, BAD, seeds=1)
    shown: list[Any] = []
    console = Console(width=100, height=40)
    screen = Screen(SimpleNamespace(update=shown.append), console)
    training = outcome.requested_seeds[0].training
    assert training is not None
    pool: Any = SimpleNamespace(running={training: time.monotonic()})
    screen.update(outcome, pool)
    training.folder.mkdir(parents=True)
    (training.folder / "rounds.jsonl").write_bytes(b"{}\n" * 50)
    screen._estimate._begun = time.monotonic() - 10
    screen.update(outcome, pool)
    with console.capture() as captured:
        console.print(shown[-1])
    output = captured.get()
    assert "round 50/100" in output
    assert "about 0:00:30 left" in output
    assert "running" in output


def test_the_estimate_ignores_rounds_of_an_earlier_command(tmp_path: Path) -> None:
    """The second half of a training took ten seconds: another training takes twenty."""
    outcome = make_outcome(tmp_path, GOOD, BAD, seeds=1)
    estimate = TimeEstimate()
    training = outcome.requested_seeds[0].training
    assert training is not None
    training.folder.mkdir(parents=True)
    (training.folder / "rounds.jsonl").write_bytes(b"{}\n" * 50)
    estimate.time_left(outcome, {training: 0.0})
    fake_result(outcome.requested_seeds[0], 78.0)
    estimate.training_ended(training)
    estimate._begun = time.monotonic() - 10
    assert estimate.time_left(outcome, {}) == "about 0:00:20 left"
