"""Figures that other code has made are kept, said to be so, and made again if somebody asks for it."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest
from pretended import GOOD, outcome, pretend

import fedssl
from fedssl.errors import RunError
from fedssl.lock import locked
from fedssl.provenance import code
from fedssl.report.tables import print_outcome
from fedssl.reproduce import TableError, _todo, found
from fedssl.reproduce.fresh import set_aside
from fedssl.reproduce.made import cautions
from fedssl.reproduce.markdown import markdown
from fedssl.reproduce.outcome import Outcome

OLD = "0ld0c0de"


@pytest.fixture
def mixed(tmp_path: Path) -> Outcome:
    """Four seeds: of today, trained by older code, measured by older code, begun by code that nobody noted."""
    made = outcome(tmp_path, GOOD, seeds=4)
    today, trained, measured, begun = made.wanted
    pretend(today, 80.0)
    pretend(trained, 80.0, trained=f"{OLD}, {code()}")
    pretend(measured, 80.0, measured=OLD)
    assert begun.training is not None
    begun.training.folder.mkdir()
    (begun.training.folder / "rounds.jsonl").write_text('{"round": 1}\n{"rou')
    return made


def test_other_code_is_told_from_todays(mixed: Outcome) -> None:
    assert [seed.codes for seed in mixed.results[0].seeds] == [(code(),), *[tuple(sorted((OLD, code())))] * 2, ()]
    assert mixed.to_dict()["code"] == code()
    assert "\n2 of 3 measurements were made by other code than that of today" in markdown(mixed)
    assert sum(want.training in _todo(mixed) for want in mixed.wanted) == 1  # what is there is kept


def test_a_person_is_told(mixed: Outcome, capsys: pytest.CaptureFixture[str]) -> None:
    print_outcome(mixed)
    assert f"made by other code than that of today ({code()}): --fresh makes them again" in capsys.readouterr().out


def test_nothing_is_said_of_figures_of_today(tmp_path: Path) -> None:
    made = outcome(tmp_path, GOOD, seeds=1)
    pretend(made.wanted[0], 80.0)
    assert list(cautions(made)) == []
    assert f"\nMade by fedssl 1, code {code()}, device cpu.\n" in markdown(made)


def test_figures_without_a_code_are_not_taken_for_todays(tmp_path: Path) -> None:
    made = outcome(tmp_path, GOOD, seeds=1)
    pretend(made.wanted[0], 80.0)
    for file in made.wanted[0].training.folder.rglob("*.json"):  # type: ignore[union-attr]
        found_there = json.loads(file.read_text())
        found_there.pop("code", None)
        found_there.get("environment", {}).pop("code", None)
        file.write_text(json.dumps(found_there))
    (made.wanted[0].training.folder / found.MEASURES / "integrity.jsonl").unlink()  # type: ignore[union-attr]
    assert made.results[0].seeds[0].codes == ("unknown",)
    assert "1 of 1 measurements were made by other code" in markdown(made)


def test_fresh_sets_aside_what_other_code_has_made_and_nothing_else(mixed: Outcome, tmp_path: Path) -> None:
    """The second and the fourth training as a whole, of the third only the measurement; and no more the next time."""
    folders = [want.training.folder for want in mixed.wanted if want.training is not None]
    for _ in range(2):
        set_aside(mixed.wanted)
        assert [folder.exists() for folder in folders] == [True, False, True, False]
        names = {path.name for path in tmp_path.iterdir()} - {folder.name for folder in folders}
        both = "-".join(sorted((OLD, code())))
        assert names == {f"{folders[1].name}.by-{both}", f"{folders[3].name}.by-unknown"}
        kept = sorted(path.name for path in (folders[2] / found.MEASURES).glob("linear*"))
        assert kept == [f"{mixed.wanted[2].measure.file}.by-{OLD}"]  # type: ignore[union-attr]
    assert [want.seed for want in mixed.wanted if want.training in _todo(mixed)] == [1, 2, 3]
    pretend(mixed.wanted[1], 80.0, trained=f"{OLD}, {code()}")
    set_aside(mixed.wanted)
    assert (tmp_path / f"{folders[1].name}.by-{both}-1").is_dir()


def test_fresh_moves_nothing_that_is_in_use(mixed: Outcome) -> None:
    folder = mixed.wanted[1].training.folder  # type: ignore[union-attr]
    with locked(folder / found.MEASURES), pytest.raises(RunError, match="in use"):
        set_aside(mixed.wanted)
    assert folder.is_dir()


def test_the_command_passes_it_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[int]] = []
    module = import_module("fedssl.reproduce")  # the name in fedssl is the function's
    monkeypatch.setattr(module, "set_aside", lambda wanted: asked.append([want.seed for want in wanted]))
    monkeypatch.setattr(module, "_todo", lambda outcome: {})
    with pytest.raises(TableError):  # nothing is trained here
        fedssl.reproduce("fedema-3", "mini", 1, ["FedEMA"], tmp_path)
    assert asked == []
    with pytest.raises(TableError):
        fedssl.reproduce("fedema-3", "mini", 1, ["FedEMA"], tmp_path, fresh=True)
    with pytest.raises(TableError):
        fedssl.sweep("demo", seeds=2, dir=tmp_path, fresh=True)
    assert asked[1:] == [[0, 1]]
    assert set(asked[0]) == {0}
