"""Files of clients are found and removed; what remains can be used, and is not resumed silently."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from error_messages import raises
from factories import bright_dataset, make_experiment
from PIL import Image

import fedssl
from fedssl.core.errors import ConfigError, RunError
from fedssl.core.files import purge_note
from fedssl.core.files.lock import locked
from fedssl.core.files.sealed import seal
from fedssl.runs.client_files import DEFAULT, GROUPS, find_places, open_to_others
from fedssl.runs.purge import find_targets, held, raise_if_used, remove

pytestmark = pytest.mark.rows("C10")


def _train(folder: Path, **changes: Any) -> fedssl.Run:
    settings = {"name": "simclr", "hidden": 16, "dim": 8}
    experiment = make_experiment(rounds=1, method=settings)
    return fedssl.run(
        experiment, folder, "cpu", dataset=bright_dataset(24, 12), quiet=True, set=changes
    )


def _purge(folder: Path, groups: Any = DEFAULT) -> list[str]:
    """Remove the groups, and return the paths that were removed, relative to the folder."""
    targets = find_targets([folder], groups)
    with held(targets):
        remove(targets)
    paths = []
    for target in targets:
        paths += [str(folder_file.path) for folder_file in target.loose]
        for plan in target.plans:
            for file in plan.files:
                path = plan.place.folder / file.path
                assert not path.exists()
                paths.append(str(path.relative_to(folder.resolve())))
    return sorted(paths)


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


PERSONAL = {"method.name": "mocov2", "method.queue": 16, "algorithm.name": "fedbn"}


def test_a_run_with_memory_and_personal_models(tmp_path: Path) -> None:
    """By default the shared results stay; the memory of clients and their models are removed."""
    folder = tmp_path / "run"
    run = _train(folder, **PERSONAL)
    before = _files(folder)
    log = run.rounds
    removed = _purge(folder)
    personal = [f"backbone-{client}.safetensors" for client in "012"]
    assert removed == [*personal, "memory/rows"]
    assert _files(folder) == before - set(removed) | {"purged.json"}
    purged = fedssl.Run(folder, device="cpu")
    assert purged.rounds == log
    assert purged.results["table"]
    with raises(RunError):
        _train(folder, **PERSONAL)
    with raises(RunError):
        _train(folder, **PERSONAL, rounds=2)


def test_a_run_without_client_memory_has_nothing_to_remove(tmp_path: Path) -> None:
    """It can still be resumed, and `--checkpoints` removes the server's models too."""
    folder = tmp_path / "run"
    _train(folder)
    assert _purge(folder) == []
    assert len(_train(folder, rounds=2).rounds) == 2
    removed = _purge(folder, GROUPS)
    assert {path.partition("/")[0] for path in removed} == {"checkpoints"}
    assert (folder / "backbone.safetensors").is_file()
    with raises(ConfigError):
        fedssl.Run(folder, device="cpu").evaluate("knn")
    with raises(RunError):
        _train(folder, rounds=2)


def test_checkpoints_of_peers_are_models_of_clients(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    _train(folder, **{"topology.name": "cycle"})
    removed = _purge(folder)
    assert "checkpoints/00001.safetensors" in removed
    assert "backbone-0.safetensors" in removed
    assert "backbone-mean.safetensors" not in removed
    assert (folder / "backbone-mean.safetensors").is_file()


def test_features_that_clients_shared_are_in_the_checkpoints(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    algorithm = {"algorithm.name": "ccl", "algorithm.features": 3, "algorithm.mix": 2}
    _train(folder, **{"method.name": "mocov2", "method.queue": 16, **algorithm})
    assert "checkpoints/00001.safetensors" in _purge(folder)


def test_baselines_and_leftovers_of_killed_writes_are_included(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    _train(folder, **{"probe.baselines": ["isolated"]})
    (folder / ".0a1b2c3d.backbone-0.safetensors.tmp").write_bytes(b"half")
    removed = _purge(folder)
    assert ".0a1b2c3d.backbone-0.safetensors.tmp" in removed
    assert "isolated/checkpoints/00001.safetensors" in removed


def test_a_run_with_a_purged_baseline_is_not_extended_with_it(tmp_path: Path) -> None:
    """The error comes before the training, and the run can be extended alone."""
    folder = tmp_path / "run"
    baselines = {"probe.baselines": ["random", "isolated"]}
    _train(folder, **baselines)
    _purge(folder)
    before = (folder / "rounds.jsonl").read_bytes()
    _train(folder, **baselines)  # finished already
    with raises(RunError):
        _train(folder, **baselines, rounds=2)
    assert (folder / "rounds.jsonl").read_bytes() == before
    assert len(_train(folder, **{"probe.baselines": []}, rounds=2).rounds) == 2


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Return a folder with the cache of four images, and a list of unreadable ones."""
    for number in range(4):
        path = tmp_path / f"images/client{number % 2}/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (12, 12), (number, 0, 0)).save(path)
    source = fedssl.data.SOURCES["folder"](
        path=str(tmp_path / "images"), layout="clients", size=8, cache=str(tmp_path / "cache")
    )
    source.load(tmp_path)
    (tmp_path / "cache/unreadable.txt").write_text("scan of a patient.png\n")
    return tmp_path / "cache"


def test_a_cache_is_removed_with_its_folder(cache: Path) -> None:
    (home,) = (path for path in cache.iterdir() if path.is_dir())
    (cache / "other").mkdir()
    (cache / "other/file").write_text("not of fedssl")
    names = [f"{home.name}/{name}" for name in ("folder", "index", "pixels")]
    assert _purge(cache) == [*names, "unreadable.txt"]
    assert _files(cache) == {"other/file"}
    assert not home.exists()


def test_one_cache_may_be_named(cache: Path) -> None:
    (home,) = (path for path in cache.iterdir() if path.is_dir())
    assert _purge(home) == ["folder", "index", "pixels"]
    assert _files(cache) == {"unreadable.txt"}


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """Return the memory folder of a node whose client took part in one run."""
    folder = tmp_path / "nodes/hospital/run1"
    folder.mkdir(parents=True, mode=0o700)
    claim = {"attempt": 0, "round": 1, "by": "x", "pid": 2**22 + 1}  # above the largest pid
    (folder / "claim.json").write_bytes(seal(claim))
    for name in ("run.lock", "images.sha256", "00001.0.remembered", "backbone.safetensors"):
        (folder / name).write_bytes(b"x")
    return tmp_path / "nodes"


@pytest.mark.parametrize("named", ["", "hospital", "hospital/run1"])
def test_the_memory_of_a_node(named: str, node: Path) -> None:
    _purge(node / named)
    assert _files(node) == {"hospital/run1/run.lock", "hospital/run1/purged.json"}
    assert len(find_places(node)) == 1  # recognised again


def test_personal_models_of_a_node_can_be_kept(node: Path) -> None:
    _purge(node, {"memory"})
    assert "hospital/run1/backbone.safetensors" in _files(node)


def test_a_node_that_trains_is_not_touched(node: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        claim = {"attempt": 0, "round": 1, "by": "x", "pid": process.pid}
        (node / "hospital/run1/claim.json").write_bytes(seal(claim))
        before = _files(node)
        targets = find_targets([node], DEFAULT)
        with raises(RunError):
            raise_if_used(targets)
        with raises(RunError), held(targets):
            pass
        assert _files(node) == before
    finally:
        process.communicate(b"\n")


def test_a_run_in_progress_is_not_touched(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    _train(folder)
    targets = find_targets([folder], GROUPS)
    with locked(folder):
        with raises(RunError):
            raise_if_used(targets)
        with raises(RunError), held(targets):
            pass


def test_other_folders_are_refused(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain/experiment.toml").write_text("rounds = 1\n")  # never started
    for folder in (tmp_path / "plain", tmp_path / "images", tmp_path / "missing", tmp_path):
        with raises(ConfigError):
            find_targets([folder], GROUPS)


def test_links_are_reported_and_not_followed(tmp_path: Path) -> None:
    """A user moved the memory to another disk: nothing outside is removed."""
    folder = tmp_path / "run"
    _train(folder, **PERSONAL)
    (folder / "memory").rename(tmp_path / "elsewhere")
    (folder / "memory").symlink_to(tmp_path / "elsewhere")
    (target,) = find_targets([folder], DEFAULT)
    assert target.links == [Path("memory")]
    _purge(folder)
    assert (tmp_path / "elsewhere/rows").is_file()


def test_a_purge_that_is_killed_leaves_its_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note is written first, so that a run is not resumed with a part of its memory."""
    folder = tmp_path / "run"
    _train(folder, **PERSONAL)

    def fail(*arguments: Any) -> None:
        raise OSError

    monkeypatch.setattr("fedssl.runs.purge.remove_file", fail)
    with pytest.raises(OSError):  # noqa: PT011 - raised above
        _purge(folder)
    assert purge_note.purged_at(folder) is not None


def test_folders_that_others_may_read_are_found(tmp_path: Path, node: Path, cache: Path) -> None:
    assert open_to_others(node) == []
    for folder in (node, node / "hospital"):
        folder.chmod(0o755)
    assert open_to_others(node) == []  # the innermost folder is still closed
    (node / "hospital/run1").chmod(0o750)
    assert open_to_others(node) == [node / "hospital/run1"]
    node.chmod(0o700)
    assert open_to_others(node) == []
    assert open_to_others(cache) == []


@pytest.mark.parametrize("umask", [0o022, 0o000])
def test_caches_are_private_also_those_of_earlier_versions(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        folder = tmp_path / "images"
        folder.mkdir()
        Image.new("RGB", (12, 12)).save(folder / "a.png")
        source = fedssl.data.SOURCES["folder"](
            path=str(folder), layout="flat", size=8, cache=str(tmp_path / "cache")
        )
        source.load(tmp_path)
        (home,) = (tmp_path / "cache").iterdir()
        home.chmod(0o755)
        source.load(tmp_path)
    finally:
        os.umask(before)
    assert home.stat().st_mode & 0o777 == 0o700
    for path in home.iterdir():
        if path.name != "run.lock":
            assert path.stat().st_mode & 0o777 == 0o600
