"""The files of clients in a run directory are found, also if its log or experiment is damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from factories import bright_dataset, make_experiment

import fedssl
from fedssl.runs.client_files import DEFAULT, GROUPS
from fedssl.runs.purge import find_targets, held, remove

pytestmark = pytest.mark.rows("C10")


def _train(folder: Path, **changes: Any) -> fedssl.Run:
    settings = {"name": "simclr", "hidden": 16, "dim": 8}
    experiment = make_experiment(rounds=1, method=settings)
    return fedssl.run(
        experiment, folder, "cpu", dataset=bright_dataset(24, 12), quiet=True, set=changes
    )


def _purge(folder: Path, groups: Any = DEFAULT) -> list[str]:
    """Remove the groups, and return the paths that were removed."""
    targets = find_targets([folder], groups)
    with held(targets):
        remove(targets)
    return sorted(str(file.path) for target in targets for file in target.files)


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_report_counts_images_of_clients_and_is_removed(tmp_path: Path) -> None:
    """A report that the user has put somewhere else is not known."""
    folder = tmp_path / "run"
    _train(folder)
    (folder / "report.html").write_bytes(b"x")
    (folder / "mine.html").write_bytes(b"x")
    assert _purge(folder, {"report"}) == ["report.html"]
    assert (folder / "mine.html").is_file()


def test_images_that_an_audit_recovered_are_removed(tmp_path: Path) -> None:
    """Other files next to them stay, and the run can be resumed."""
    folder = tmp_path / "run"
    _train(folder)
    (folder / "audit/mine").mkdir(parents=True)
    for name in ("audit.json", "audit.png", ".0a1b2c3d.audit.png.tmp", "notes", "mine/audit.png"):
        (folder / "audit" / name).write_bytes(b"x")
    removed = ["audit/.0a1b2c3d.audit.png.tmp", "audit/audit.json", "audit/audit.png"]
    assert _purge(folder, {"memory", "models"}) == []
    assert _purge(folder) == removed
    assert _files(folder / "audit") == {"notes", "mine/audit.png"}
    assert len(_train(folder, rounds=2).rounds) == 2


def _damage(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"clients", b"cli\0nts"))


def test_the_status_of_an_unfinished_round_is_removed(tmp_path: Path) -> None:
    """The run can still be resumed."""
    folder = tmp_path / "run"
    _train(folder)
    (folder / "live.json").write_bytes(b"damaged")
    assert _purge(folder) == ["live.json"]
    assert len(_train(folder, rounds=2).rounds) == 2


def test_models_of_peers_are_found_without_the_log_and_the_checkpoint(tmp_path: Path) -> None:
    """The topology in experiment.toml states that the sites are clients."""
    folder = tmp_path / "run"
    _train(folder, **{"topology.name": "cycle"})
    for path in [*folder.glob("rounds.jsonl*"), *folder.glob("checkpoints/*.json")]:
        _damage(path)
        path.write_bytes(b"{}\n" + path.read_bytes())
    (target,) = find_targets([folder], DEFAULT)
    assert "checkpoints/00001.safetensors" in [str(file.path) for file in target.files]
    personal = [Path(f"backbone-{client}.safetensors") for client in "012"]
    assert target.unclassified == personal
    removed = _purge(folder, GROUPS)
    assert {str(path) for path in personal} < set(removed)
    assert (folder / "backbone-mean.safetensors").is_file()


def test_checkpoints_of_an_unknown_topology_with_a_damaged_log_are_listed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    _train(folder)
    for name in ("integrity.jsonl", "experiment.toml"):
        (folder / name).write_bytes(b"damaged")
    for path in folder.glob("rounds.jsonl*"):
        _damage(path)
    (target,) = find_targets([folder], DEFAULT)
    assert Path("checkpoints/00001.safetensors") in target.unclassified
    assert not target.files
