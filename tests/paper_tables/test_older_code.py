"""Figures made by other code are kept with a warning, and made again with --fresh."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest
from error_messages import raises
from fake_results import GOOD, fake_result, make_outcome

import fedssl
from fedssl.cli.table_progress import print_outcome
from fedssl.core.errors import RunError
from fedssl.core.files.lock import locked
from fedssl.core.provenance import code
from fedssl.paper_tables import results_on_disk
from fedssl.paper_tables.comparability import provenance_warnings
from fedssl.paper_tables.markdown import markdown
from fedssl.paper_tables.reproduce import TableError, _missing_measures
from fedssl.paper_tables.results_on_disk import set_aside_outdated
from fedssl.paper_tables.table_results import Outcome

OLD = "0ld0c0de"


@pytest.fixture
def mixed(tmp_path: Path) -> Outcome:
    """Four seeds: current, trained by older code, measured by older code, begun by unknown code."""
    outcome = make_outcome(tmp_path, GOOD, seeds=4)
    current, trained, measured, begun = outcome.requested_seeds
    fake_result(current, 80.0)
    fake_result(trained, 80.0, trained=f"{OLD}, {code()}")
    fake_result(measured, 80.0, measured=OLD)
    assert begun.training is not None
    begun.training.folder.mkdir()
    (begun.training.folder / "rounds.jsonl").write_text('{"round": 1}\n{"rou')
    return outcome


def test_other_code_is_distinguished_from_the_current(mixed: Outcome) -> None:
    assert [seed.codes for seed in mixed.results[0].seeds] == [
        (code(),),
        *[tuple(sorted((OLD, code())))] * 2,
        (),
    ]
    assert mixed.to_dict()["code"] == code()
    assert "\n2 of 3 measurements were made by other code than the current" in markdown(mixed)
    missing = [plan for plan in mixed.requested_seeds if plan.training in _missing_measures(mixed)]
    assert len(missing) == 1  # existing results are kept


def test_the_warning_is_printed(mixed: Outcome, capsys: pytest.CaptureFixture[str]) -> None:
    print_outcome(mixed)
    assert (
        f"made by other code than the current ({code()}): --fresh makes them again"
        in capsys.readouterr().out
    )


def test_there_is_no_warning_for_figures_of_the_current_code(tmp_path: Path) -> None:
    outcome = make_outcome(tmp_path, GOOD, seeds=1)
    fake_result(outcome.requested_seeds[0], 80.0)
    assert provenance_warnings(outcome.results) == []
    assert f"\nMade by fedssl 1, code {code()}, device cpu.\n" in markdown(outcome)


def test_figures_without_a_code_do_not_count_as_current(tmp_path: Path) -> None:
    outcome = make_outcome(tmp_path, GOOD, seeds=1)
    fake_result(outcome.requested_seeds[0], 80.0)
    training = outcome.requested_seeds[0].training
    assert training is not None
    for file in training.folder.rglob("*.json"):
        values = json.loads(file.read_text())
        values.pop("code", None)
        values.get("environment", {}).pop("code", None)
        file.write_text(json.dumps(values))
    (training.folder / results_on_disk.MEASURES / "integrity.jsonl").unlink()
    assert outcome.results[0].seeds[0].codes == ("unknown",)
    assert "1 of 1 measurements were made by other code" in markdown(outcome)


def test_fresh_sets_aside_only_results_of_other_code(mixed: Outcome, tmp_path: Path) -> None:
    """The second and fourth training, and the measurement of the third; only once."""
    folders = [plan.training.folder for plan in mixed.requested_seeds if plan.training is not None]
    for _ in range(2):
        set_aside_outdated(mixed.requested_seeds)
        assert [folder.exists() for folder in folders] == [True, False, True, False]
        names = {path.name for path in tmp_path.iterdir()} - {folder.name for folder in folders}
        both = "-".join(sorted((OLD, code())))
        assert names == {f"{folders[1].name}.by-{both}", f"{folders[3].name}.by-unknown"}
        kept = sorted(path.name for path in (folders[2] / results_on_disk.MEASURES).glob("linear*"))
        measure = mixed.requested_seeds[2].measure
        assert measure is not None
        assert kept == [f"{measure.file}.by-{OLD}"]
    assert [
        plan.seed for plan in mixed.requested_seeds if plan.training in _missing_measures(mixed)
    ] == [1, 2, 3]
    fake_result(mixed.requested_seeds[1], 80.0, trained=f"{OLD}, {code()}")
    set_aside_outdated(mixed.requested_seeds)
    assert (tmp_path / f"{folders[1].name}.by-{both}-1").is_dir()


def test_fresh_moves_nothing_that_is_in_use(mixed: Outcome) -> None:
    folder = mixed.requested_seeds[1].training.folder  # type: ignore[union-attr]
    with locked(folder / results_on_disk.MEASURES), raises(RunError):
        set_aside_outdated(mixed.requested_seeds)
    assert folder.is_dir()


def test_the_functions_pass_fresh_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apply_holdout: list[list[int]] = []
    module = import_module("fedssl.paper_tables.reproduce")  # fedssl.reproduce is the function
    monkeypatch.setattr(
        module,
        "set_aside_outdated",
        lambda plans: apply_holdout.append([plan.seed for plan in plans]),
    )
    monkeypatch.setattr(module, "_missing_measures", lambda outcome: {})
    with pytest.raises(TableError):  # nothing is trained here
        fedssl.reproduce("fedema-3", "mini", 1, ["FedEMA"], tmp_path)
    assert apply_holdout == []
    with pytest.raises(TableError):
        fedssl.reproduce("fedema-3", "mini", 1, ["FedEMA"], tmp_path, fresh=True)
    with pytest.raises(TableError):
        fedssl.sweep("demo", seeds=2, dir=tmp_path, fresh=True)
    assert apply_holdout[1:] == [[0, 1]]
    assert set(apply_holdout[0]) == {0}
