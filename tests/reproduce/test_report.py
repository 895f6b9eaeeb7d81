"""What a person sees: the list of tables, lines off a terminal, the live table, and how the command ends."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pretended import BAD, GOOD, PRIVATE, outcome, pretend
from rich.console import Console
from typer.testing import CliRunner

from fedssl.cli import app
from fedssl.report.catalogue import catalogue
from fedssl.report.tables import Lines, Pace, Screen, called, print_outcome
from fedssl.reproduce.outcome import Outcome, Where
from fedssl.reproduce.plan import wants
from fedssl.reproduce.swept import swept
from fedssl.tables import Cell, tables


def invoke(*words: str) -> Any:
    return CliRunner().invoke(app, ["reproduce", *words])


def test_the_list_counts_cells_trainings_and_images() -> None:
    """FedEMA's Table 3: eleven rows of four cells and one of two, each 50,000 images × 100 rounds × 5 epochs;
    at mini scale CIFAR-10 and -100 are the same images, so that only FedU, whose μ differs, has four: 25."""
    sizes = {each["table"]: each for each in catalogue("")}
    assert list(sizes) == list(tables())
    third = sizes["fedema-3"]
    assert (third["cells"], third["published"], third["trainings"]) == (46, 46, 46)
    assert third["image_passes"] == 46 * 25e6
    small = {each["table"]: each for each in catalogue("-mini")}["fedema-3"]
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


def test_a_table_that_nobody_can_reproduce_is_no_failure(tmp_path: Path) -> None:
    made = invoke("decssl-1-right", "--dir", str(tmp_path), "--seeds", "1")
    assert made.exit_code == 0
    assert "cannot be had: the warehouse images are private" in made.output
    assert (tmp_path / "decssl-1-right-paper.md").is_file()


def test_what_did_not_come_about_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = outcome(tmp_path, GOOD, BAD, PRIVATE, seeds=1)
    pretend(made.wanted[0], 78.0)
    bad = made.wanted[1]
    made.problems[bad.training, bad.measure.file] = "no such images"  # type: ignore[index, union-attr]
    print_outcome(made)
    said = capsys.readouterr().out
    assert "A, y: no such images" in said
    assert "−1.44" in said
    assert "79.44 ± 0.99" in said


def test_lines_say_what_began_and_what_came_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = Cell("B", "x", GOOD.recipe, "linear", ("labels=100",))  # not asked for: another figure of the same training
    made, lines = outcome(tmp_path, GOOD, other, seeds=1, asked=[GOOD]), Lines()
    training = made.wanted[0].training
    pool = SimpleNamespace(running={training: time.monotonic()})
    lines.look(made, pool)  # type: ignore[arg-type]
    lines.look(made, pool)  # type: ignore[arg-type]
    pretend(made.wanted[0], 78.0)
    lines.ended(made, training, {})  # type: ignore[arg-type]
    begun, ended = capsys.readouterr().err.splitlines()
    assert begun == f"fedbyol-cifar10-noniid (A, x) seed 0: {training.folder}"  # type: ignore[union-attr]
    assert ended == "fedbyol-cifar10-noniid (A, x) seed 0: linear 78.00 (1 of 1 cells)"


def test_a_training_is_called_by_its_settings() -> None:
    """A sweep's rows are its settings; a training of several of a paper's cells is called by the first."""
    table = swept("demo", ["algorithm.weights=uniform,size", "rounds=2"], ["knn", "linear"])
    planned = list(wants(table.cells, "", [0], Path("r"), torch.device("cpu")))
    made = Outcome(table, "as it is", planned, 1, table.cells, Where(Path("r"), Path("data"), "cpu"))
    names = dict.fromkeys(called(made, want.training) for want in made.wanted if want.training)
    assert list(names) == ["demo (algorithm.weights=uniform) seed 0", "demo (algorithm.weights=size) seed 0"]
    other = Cell("B", "x", GOOD.recipe, "linear", ("labels=100",))
    both = outcome(Path("r"), GOOD, other, seeds=1)
    assert called(both, both.wanted[0].training) == "fedbyol-cifar10-noniid (A, x and 1 more) seed 0"  # type: ignore[arg-type]


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
        (["fedema-3", "--list", "--cells", "nosuch"], "no cell of fedema-3 is like nosuch"),
        (["--list", "--cells", "FedU"], "--cells are those of a table: name one"),
    ):
        assert problem in str(invoke(*words).exception)


def test_the_live_table_shows_round_and_time_left(tmp_path: Path) -> None:
    """50 of 100 rounds since the first look, ten seconds ago, and another training to come: 30 seconds are left."""
    made, shown = outcome(tmp_path, GOOD, BAD, seeds=1), list[Any]()
    console = Console(width=100, height=40)
    screen = Screen(SimpleNamespace(update=shown.append), console)
    training = made.wanted[0].training
    assert training is not None
    pool: Any = SimpleNamespace(running={training: time.monotonic()})
    screen.look(made, pool)
    training.folder.mkdir(parents=True)
    (training.folder / "rounds.jsonl").write_bytes(b"{}\n" * 50)
    screen._pace._begun = time.monotonic() - 10
    screen.look(made, pool)
    with console.capture() as captured:
        console.print(shown[-1])
    said = captured.get()
    assert "round 50/100" in said
    assert "about 0:00:30 left" in said
    assert "running" in said


def test_the_rest_is_estimated_without_what_was_there_before(tmp_path: Path) -> None:
    """Half of a training was there; the other half took ten seconds: another training takes twenty."""
    made, pace = outcome(tmp_path, GOOD, BAD, seeds=1), Pace()
    training = made.wanted[0].training
    assert training is not None
    training.folder.mkdir(parents=True)
    (training.folder / "rounds.jsonl").write_bytes(b"{}\n" * 50)
    pace.left(made, {training: 0.0})
    pretend(made.wanted[0], 78.0)
    pace.ended(training)
    pace._begun = time.monotonic() - 10
    assert pace.left(made, {}) == "about 0:00:20 left"
