"""What is said of a table: figures by hand, what failed, what nobody can have; and where it is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from pretended import BAD, GOOD, PRIVATE, outcome, pretend

import fedssl
from fedssl.errors import ConfigError
from fedssl.provenance import code
from fedssl.report.tables import print_outcome
from fedssl.reproduce import _todo, _wants
from fedssl.reproduce.markdown import against, figure, markdown
from fedssl.reproduce.outcome import Outcome, Result, Where
from fedssl.reproduce.plan import wants
from fedssl.reproduce.swept import swept
from fedssl.tables import Cell, tables


def test_mean_deviation_and_difference(tmp_path: Path) -> None:
    """78, 80 and 82: mean 80, deviation 2, 0.56 above 79.44."""
    made = outcome(tmp_path, GOOD)
    for want, value in zip(made.wanted, (78.0, 80.0, 82.0), strict=True):
        pretend(want, value)
    (result,) = made.results
    assert (result.mean, result.std, result.state) == (80.0, 2.0, "done")
    assert result.difference == pytest.approx(0.56)
    assert figure(result) == "80.00 ± 2.00 (3)"
    assert against(result, comparable=True) == "+0.56"
    assert "| A | x | 79.44 ± 0.99 | 80.00 ± 2.00 (3) | +0.56 |" in markdown(made)
    assert made.failed == []
    assert _todo(made) == {}


CAVEAT = "scale, NOT COMPARABLE with the published figures: trained on"
MINI = f"[mini {CAVEAT} 5,000 images of Fashion-MNIST; cnn; 10 rounds of 1 local epoch]"
SHORT = f"[short {CAVEAT} cifar10; resnet18; 100 rounds of 1 local epoch]"


@pytest.mark.parametrize(("scale", "caveat"), [("paper", ""), ("short", f" {SHORT}"), ("mini", f" {MINI}")])
def test_a_title_states_that_figures_are_not_comparable(
    scale: str, caveat: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the actual data and budget: on the screen, in the Markdown file and in the JSON file."""
    made = outcome(tmp_path, GOOD, BAD, seeds=1, scale=scale)
    for want in made.wanted:
        pretend(want, 50.0)
    made.save(markdown(made))
    print_outcome(made)
    said = capsys.readouterr().out
    title = f"P, Table 1: t{caveat}"
    assert said.splitlines()[0] == title
    assert ("published (not comparable)" in said) == (scale != "paper")
    text = made.markdown_file.read_text()
    assert text.splitlines()[0] == f"# {title}"
    assert ("| published (not comparable) |" in text) == (scale != "paper")
    saved = json.loads(made.json_file.read_text())
    assert saved["title"] == f"t{caveat}"
    assert saved["comparable"] is (scale == "paper")


def test_every_table_at_another_scale_has_the_caveat(tmp_path: Path) -> None:
    """At mini scale all trainings are of the images that come with the package."""
    for table in tables().values():
        for scale, suffix in (("short", "-short"), ("mini", "-mini")):
            planned = list(wants(table.cells, suffix, [0], tmp_path, torch.device("cpu")))
            made = Outcome(table, scale, planned, 1, table.cells, Where(tmp_path, Path("data"), "cpu"))
            assert f"[{scale} scale, NOT COMPARABLE with the published figures" in made.title
            data = {want.training.experiment.to_dict()["data"]["name"] for want in planned if want.training}
            if scale == "mini" and data:
                assert data == {"fashion-mini"}
                assert "trained on 5,000 images of Fashion-MNIST; " in made.title


def test_no_difference_is_said_of_a_mini(tmp_path: Path) -> None:
    made = outcome(tmp_path, GOOD, seeds=1, scale="mini")
    pretend(made.wanted[0], 50.0)
    assert made.rows[0]["difference"] is None
    assert "not comparable" in markdown(made)
    assert "−29.44" not in markdown(made)
    assert made.json_file.name == "p-1-mini.json"


def test_no_difference_is_said_of_a_shorter_training(tmp_path: Path) -> None:
    made = outcome(tmp_path, GOOD, seeds=1, scale="short")
    pretend(made.wanted[0], 50.0)
    assert made.rows[0]["difference"] is None


def test_a_seed_that_never_gets_there_is_not_left_out_of_the_mean(tmp_path: Path) -> None:
    made = outcome(tmp_path, GOOD)
    for want, value in zip(made.wanted, (45.0, None, None), strict=True):
        pretend(want, value)
    (result,) = made.results
    assert (result.mean, result.std, result.difference, result.state) == (None, None, None, "done")
    assert figure(result) == "1 of 3 seeds"


def test_seeds_that_lie_on_disk_count_though_fewer_are_asked_for(tmp_path: Path) -> None:
    made = outcome(tmp_path, GOOD, seeds=3)
    for want, value in zip(made.wanted, (78.0, 80.0, 82.0), strict=True):
        pretend(want, value)
    device = torch.device("cpu")
    again = Outcome(made.table, "paper", _wants(made.table, "", 1, tmp_path, device), 1, [GOOD], made.where)
    assert [want.seed for want in again.wanted] == [0]
    assert again.results[0].values == [78.0, 80.0, 82.0]
    fewer = Outcome(made.table, "paper", _wants(made.table, "", 1, tmp_path / "other", device), 1, [GOOD], made.where)
    assert len(fewer.results[0].seeds) == 1


def test_what_is_missing_failed_or_impossible(tmp_path: Path) -> None:
    made = outcome(tmp_path, GOOD, BAD, PRIVATE, seeds=2)
    pretend(made.wanted[0], 78.0)
    assert [result.state for result in made.results] == ["missing", "missing", "cannot"]
    assert {training.experiment.seed for training in _todo(made)} == {0, 1}
    assert len(_todo(made)) == 3  # a seed of the first, two of the second, none of what cannot be had
    training, (measure,) = next(reversed(_todo(made).items()))
    made.problems[training, measure.file] = "no such images"
    assert [result.state for result in made.results] == ["missing", "failed", "cannot"]
    assert [result.cell for result in made.failed] == [GOOD, BAD]
    text = markdown(made)
    assert "failed: no such images" in text
    assert "Cannot be had: the images are private." in text
    assert "seed 1: not run" in text


def test_only_what_was_asked_for_counts_but_all_is_told(tmp_path: Path) -> None:
    made = outcome(tmp_path, GOOD, BAD, seeds=1, asked=[GOOD])
    pretend(made.wanted[0], 78.0)
    assert made.failed == []
    assert [row["state"] for row in made.rows] == ["done", "missing"]


def test_results_of_another_experiment_are_not_taken(tmp_path: Path) -> None:
    made = outcome(tmp_path, GOOD, seeds=1)
    pretend(made.wanted[0], 78.0)
    folder = made.wanted[0].training.folder  # type: ignore[union-attr]
    for file in folder.rglob("*.json"):
        file.write_text(file.read_text().replace('"experiment": "', '"experiment": "0'))
    assert outcome(tmp_path, GOOD, seeds=1).results[0].state == "missing"
    for file in folder.rglob("*.json"):
        file.write_text(file.read_text()[:20])  # cut short
    assert outcome(tmp_path, GOOD, seeds=1).results[0].state == "missing"


def test_it_is_said_if_versions_differ(tmp_path: Path) -> None:
    made = outcome(tmp_path, GOOD, seeds=2)
    for want, version in zip(made.wanted, "12", strict=True):
        pretend(want, 78.0, version)
    ways = "; ".join(f"fedssl {version}, code {code()}, device cpu" for version in "12")
    assert f"\nNot all of these were made alike: {ways}.\n" in markdown(made)


def test_a_target_that_is_never_reached_is_no_failure(tmp_path: Path) -> None:
    made = outcome(tmp_path, Cell("A", "x", "fedema-cifar10-noniid", "rounds-to", ("target=80",)), seeds=1)
    pretend(made.wanted[0], None)
    assert figure(made.results[0]) == "none"
    assert made.failed == []


def test_a_cell_of_per_client_is_of_the_clients_own_mixes(tmp_path: Path) -> None:
    """85 in the mean over clients, where the mean on all test images is 50."""
    table = swept("demo", [], ["linear", "per-client"])
    planned = list(wants(table.cells, "", [0], tmp_path, torch.device("cpu")))
    made = Outcome(table, "as it is", planned, 1, table.cells, Where(tmp_path, Path("data"), "cpu"))
    for want, more in zip(planned, ({}, {"own_mix": {"a": 80.0, "b": 90.0}, "own_mix_mean": 85.0}), strict=True):
        pretend(want, 50.0, **more)
    assert [(each.cell.column, each.mean) for each in made.results] == [("linear", 50.0), ("per-client, own mix", 85.0)]
    assert "per-client, own mix: the mean over clients of each one's accuracy on test images in" in markdown(made)
    assert "own mix" not in swept("demo", [], ["linear"]).note


def test_a_folder_that_cannot_be_written_to_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in ("file", "file/in/it"):
        with pytest.raises(ConfigError, match=f"{place} cannot be written to .*; choose another with --dir"):
            fedssl.sweep("demo", dir=tmp_path / place)


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    """No process is started: there is nothing left to do, and what nobody can have does not count."""
    private = fedssl.reproduce("decssl-1-right", dir=tmp_path)
    assert private.failed == []
    assert {row["state"] for row in private.rows} == {"cannot"}
    assert json.loads(private.json_file.read_text()) == json.loads(json.dumps(private.to_dict()))
    assert isinstance(private.results[0], Result)
