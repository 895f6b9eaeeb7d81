"""The results of a table: figures by hand, failures, cells that cannot be reproduced, and files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from fake_results import BAD, GOOD, PRIVATE, fake_result, make_outcome

import fedssl
from fedssl.cli.table_progress import print_outcome
from fedssl.core.errors import ConfigError
from fedssl.core.provenance import code
from fedssl.paper_tables.cell_result import CellResult
from fedssl.paper_tables.columns import difference_text, measured_text
from fedssl.paper_tables.markdown import markdown
from fedssl.paper_tables.plan import plan_seeds
from fedssl.paper_tables.published import Cell, tables
from fedssl.paper_tables.reproduce import _missing_measures, _plan
from fedssl.paper_tables.sweep import sweep_table
from fedssl.paper_tables.table_results import Outcome, Workspace


def test_mean_deviation_and_difference(tmp_path: Path) -> None:
    """78, 80 and 82: mean 80, deviation 2, 0.56 above 79.44."""
    outcome = make_outcome(tmp_path, GOOD)
    for plan, value in zip(outcome.requested_seeds, (78.0, 80.0, 82.0), strict=True):
        fake_result(plan, value)
    (result,) = outcome.results
    assert (result.mean, result.std, result.state) == (80.0, 2.0, "done")
    assert result.difference == pytest.approx(0.56)
    assert measured_text(result) == "80.00 ± 2.00 (3)"
    assert difference_text(result) == "+0.56"
    assert "| A | x | 79.44 ± 0.99 | 80.00 ± 2.00 (3) | +0.56 |" in markdown(outcome)
    assert outcome.failed == []
    assert _missing_measures(outcome) == {}


CAVEAT = "scale, NOT COMPARABLE with the published figures: trained on"
MINI = f"[mini {CAVEAT} 5,000 images of Fashion-MNIST; cnn; 10 rounds of 1 local epoch]"
SHORT = f"[short {CAVEAT} cifar10; resnet18; 100 rounds of 1 local epoch]"


@pytest.mark.parametrize(
    ("scale", "caveat"), [("paper", ""), ("short", f" {SHORT}"), ("mini", f" {MINI}")]
)
def test_a_title_states_that_figures_are_not_comparable(
    scale: str, caveat: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has the caveat of the scale on the screen, in the Markdown file and in the JSON file."""
    outcome = make_outcome(tmp_path, GOOD, BAD, seeds=1, scale=scale)
    for plan in outcome.requested_seeds:
        fake_result(plan, 50.0)
    outcome.save(markdown(outcome))
    print_outcome(outcome)
    output = capsys.readouterr().out
    title = f"P, Table 1: t{caveat}"
    assert output.splitlines()[0] == title
    assert ("published (not comparable)" in output) == (scale != "paper")
    text = outcome.markdown_file.read_text()
    assert text.splitlines()[0] == f"# {title}"
    assert ("| published (not comparable) |" in text) == (scale != "paper")
    saved = json.loads(outcome.json_file.read_text())
    assert saved["title"] == f"t{caveat}"
    assert saved["comparable"] is (scale == "paper")


def test_every_table_at_another_scale_has_the_caveat(tmp_path: Path) -> None:
    """At mini scale all trainings use the images that come with the package."""
    for table in tables().values():
        for scale, suffix in (("short", "-short"), ("mini", "-mini")):
            planned = list(plan_seeds(table.cells, suffix, [0], tmp_path, torch.device("cpu")))
            outcome = Outcome(
                table, scale, planned, 1, table.cells, Workspace(tmp_path, Path("data"), "cpu")
            )
            assert f"[{scale} scale, NOT COMPARABLE with the published figures" in outcome.title
            data = {
                plan.training.experiment.to_dict()["data"]["name"]
                for plan in planned
                if plan.training
            }
            if scale == "mini" and data:
                assert data == {"fashion-mini"}
                assert "trained on 5,000 images of Fashion-MNIST; " in outcome.title


def test_a_mini_has_no_difference(tmp_path: Path) -> None:
    outcome = make_outcome(tmp_path, GOOD, seeds=1, scale="mini")
    fake_result(outcome.requested_seeds[0], 50.0)
    assert outcome.rows[0]["difference"] is None
    assert "not comparable" in markdown(outcome)
    assert "−29.44" not in markdown(outcome)
    assert outcome.json_file.name == "p-1-mini.json"


def test_a_shorter_training_has_no_difference(tmp_path: Path) -> None:
    outcome = make_outcome(tmp_path, GOOD, seeds=1, scale="short")
    fake_result(outcome.requested_seeds[0], 50.0)
    assert outcome.rows[0]["difference"] is None


def test_a_seed_that_never_gets_there_is_not_left_out_of_the_mean(tmp_path: Path) -> None:
    outcome = make_outcome(tmp_path, GOOD)
    for plan, value in zip(outcome.requested_seeds, (45.0, None, None), strict=True):
        fake_result(plan, value)
    (result,) = outcome.results
    assert (result.mean, result.std, result.difference, result.state) == (None, None, None, "done")
    assert measured_text(result) == "1 of 3 seeds"


def test_seeds_on_disk_count_even_if_fewer_are_requested(tmp_path: Path) -> None:
    outcome = make_outcome(tmp_path, GOOD, seeds=3)
    for plan, value in zip(outcome.requested_seeds, (78.0, 80.0, 82.0), strict=True):
        fake_result(plan, value)
    device = torch.device("cpu")
    again = Outcome(
        outcome.table,
        "paper",
        _plan(outcome.table, "", 1, root=tmp_path, device=device),
        1,
        [GOOD],
        outcome.workspace,
    )
    assert [plan.seed for plan in again.requested_seeds] == [0]
    assert again.results[0].values == [78.0, 80.0, 82.0]
    fewer = Outcome(
        outcome.table,
        "paper",
        _plan(outcome.table, "", 1, root=tmp_path / "other", device=device),
        1,
        [GOOD],
        outcome.workspace,
    )
    assert len(fewer.results[0].seeds) == 1


def test_missing_failed_and_impossible_cells(tmp_path: Path) -> None:
    outcome = make_outcome(tmp_path, GOOD, BAD, PRIVATE, seeds=2)
    fake_result(outcome.requested_seeds[0], 78.0)
    assert [result.state for result in outcome.results] == ["missing", "missing", "cannot"]
    assert {training.experiment.seed for training in _missing_measures(outcome)} == {0, 1}
    # One seed of the first cell, two of the second, none of the private one.
    assert len(_missing_measures(outcome)) == 3
    training, (measure,) = next(reversed(_missing_measures(outcome).items()))
    outcome.problems[training, measure.file] = "no such images"
    assert [result.state for result in outcome.results] == ["missing", "failed", "cannot"]
    assert [result.cell for result in outcome.failed] == [GOOD, BAD]
    text = markdown(outcome)
    assert "failed: no such images" in text
    assert "Not reproducible: the images are private." in text
    assert "seed 1: not run" in text


def test_only_requested_cells_can_fail_but_all_are_in_the_table(tmp_path: Path) -> None:
    outcome = make_outcome(tmp_path, GOOD, BAD, seeds=1, requested=[GOOD])
    fake_result(outcome.requested_seeds[0], 78.0)
    assert outcome.failed == []
    assert [row["state"] for row in outcome.rows] == ["done", "missing"]


def test_results_of_another_experiment_are_not_taken(tmp_path: Path) -> None:
    outcome = make_outcome(tmp_path, GOOD, seeds=1)
    fake_result(outcome.requested_seeds[0], 78.0)
    training = outcome.requested_seeds[0].training
    assert training is not None
    folder = training.folder
    for file in folder.rglob("*.json"):
        file.write_text(file.read_text().replace('"experiment": "', '"experiment": "0'))
    assert make_outcome(tmp_path, GOOD, seeds=1).results[0].state == "missing"
    for file in folder.rglob("*.json"):
        file.write_text(file.read_text()[:20])  # cut short
    assert make_outcome(tmp_path, GOOD, seeds=1).results[0].state == "missing"


def test_different_versions_are_a_warning(tmp_path: Path) -> None:
    outcome = make_outcome(tmp_path, GOOD, seeds=2)
    for plan, version in zip(outcome.requested_seeds, "12", strict=True):
        fake_result(plan, 78.0, version)
    ways = "; ".join(f"fedssl {version}, code {code()}, device cpu" for version in "12")
    assert f"\nFigures were made in different environments: {ways}.\n" in markdown(outcome)


def test_a_target_that_is_never_reached_is_not_a_failure(tmp_path: Path) -> None:
    outcome = make_outcome(
        tmp_path, Cell("A", "x", "fedema-cifar10-noniid", "rounds-to", ("target=80",)), seeds=1
    )
    fake_result(outcome.requested_seeds[0], None)
    assert measured_text(outcome.results[0]) == "none"
    assert outcome.failed == []


def test_a_cell_of_per_client_is_of_the_clients_own_mixes(tmp_path: Path) -> None:
    """85 in the mean over clients, where the mean on all test images is 50."""
    table = sweep_table("demo", [], ["linear", "per-client"])
    planned = list(plan_seeds(table.cells, "", [0], tmp_path, torch.device("cpu")))
    outcome = Outcome(
        table, "as it is", planned, 1, table.cells, Workspace(tmp_path, Path("data"), "cpu")
    )
    for plan, more in zip(
        planned, ({}, {"own_mix": {"a": 80.0, "b": 90.0}, "own_mix_mean": 85.0}), strict=True
    ):
        fake_result(plan, 50.0, **more)
    assert [(result.cell.column, result.mean) for result in outcome.results] == [
        ("linear", 50.0),
        ("per-client, own mix", 85.0),
    ]
    assert (
        "per-client, own mix: the mean over clients of each one's accuracy on test images in"
        in markdown(outcome)
    )
    assert "own mix" not in sweep_table("demo", [], ["linear"]).note


def test_a_folder_that_cannot_be_written_to_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in ("file", "file/in/it"):
        with pytest.raises(
            ConfigError, match=f"{place} cannot be written to .*; choose another with --dir"
        ):
            fedssl.sweep("demo", dir=tmp_path / place)


def test_a_finished_table_is_not_run_again(tmp_path: Path) -> None:
    """No process is started: all cells cannot be reproduced here, which is not a failure."""
    private = fedssl.reproduce("decssl-1-right", dir=tmp_path)
    assert private.failed == []
    assert {row["state"] for row in private.rows} == {"cannot"}
    assert json.loads(private.json_file.read_text()) == json.loads(json.dumps(private.to_dict()))
    assert isinstance(private.results[0], CellResult)
