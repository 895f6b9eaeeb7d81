"""The file of frozen weights: recorded, compared, and named in errors."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from error_messages import raises
from factories import bright_dataset, interrupted_in_round, make_experiment

import fedssl
from fedssl import nets
from fedssl.core.errors import ConfigError
from fedssl.data import Dataset
from fedssl.engine.checkpoints.store import Store
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.init_file import absolute_init, file_sha256, init_changes
from fedssl.runs.local import Interrupted


@pytest.fixture(scope="module")
def labelled() -> Dataset:
    return bright_dataset(24, 12, size=8)


def write_init(path: Path, seed: int) -> str:
    """Write a backbone, and return the SHA-256 of the file."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        nets.save_backbone(nets.build("cnn").state_dict(), path, {})
    return hashlib.sha256(path.read_bytes()).hexdigest()


def adapted(init: Path, **settings: Any) -> Experiment:
    method = {"backbone": "cnn", "init": str(init), "adapters": {"rank": 2}}
    return make_experiment({"method": method}, **settings)


def go(experiment: Experiment, folder: Path, data: Dataset) -> fedssl.Run:
    return fedssl.run(experiment, folder, "cpu", dataset=data, quiet=True)


def bits(folder: Path) -> bytes:
    snapshot = Store(folder).load(lambda line: None)
    assert snapshot is not None
    return snapshot.sites["server"]["model"].floats.numpy().tobytes()  # type: ignore[union-attr]


def test_the_default_changes_no_hash() -> None:
    plain = make_experiment()
    assert "adapters" not in plain.to_dict()["method"]
    assert plain.with_changes({"method.adapters": "none"}).hash() == plain.hash()
    changed = plain.with_changes({"method.adapters.rank": 4})
    assert changed.hash() != plain.hash()
    assert changed.method.adapters is not None
    assert (changed.method.adapters.rank, changed.method.adapters.alpha) == (4, 16.0)
    assert changed.with_changes({"method.adapters": "none"}).hash() == plain.hash()


@pytest.mark.parametrize(
    "adapters",
    [
        {"rank": 0},
        {"rank": 8, "alpha": 0},
        {"rnk": 8},
        {"rank": 8, "sha256": "abc"},
        {"rank": 8, "layers": "qkv"},
        {},
        8,
    ],
)
def test_wrong_settings_are_named(adapters: Any) -> None:
    table = {"method": {**make_experiment().to_dict()["method"], "adapters": adapters}}
    with raises(ConfigError):
        Experiment.from_dict({**make_experiment().to_dict(), **table})


def test_adapters_need_pretrained_weights(tmp_path: Path) -> None:
    with raises(ConfigError):
        make_experiment(method__adapters__rank=2).check()
    with raises(ConfigError):
        adapted(tmp_path / "missing.safetensors").check()


def test_the_hash_of_the_file_is_recorded_when_a_run_starts(
    tmp_path: Path, labelled: Dataset
) -> None:
    init = tmp_path / "init.safetensors"
    digest = write_init(init, 0)
    experiment = adapted(init, rounds=1)
    assert file_sha256(init) == digest
    assert init_changes(experiment.method) == {"method.adapters.sha256": digest}
    assert init_changes(make_experiment().method) == {}
    run = go(experiment, tmp_path / "run", labelled)
    assert run.experiment.method.adapters is not None
    assert run.experiment.method.adapters.sha256 == digest
    go(experiment, tmp_path / "run", labelled)  # finished already
    assert len(run.rounds) == 1


def test_a_killed_run_resumes_to_the_same_bits(tmp_path: Path, labelled: Dataset) -> None:
    init = tmp_path / "init.safetensors"
    write_init(init, 0)
    experiment = adapted(init, algorithm="fedema", rounds=3)
    go(experiment, tmp_path / "whole", labelled)
    with interrupted_in_round(2), pytest.raises(Interrupted):
        go(experiment, tmp_path / "killed", labelled)
    go(experiment, tmp_path / "killed", labelled)
    assert bits(tmp_path / "killed") == bits(tmp_path / "whole")


def test_another_or_no_file_is_rejected_with_both_hashes(tmp_path: Path, labelled: Dataset) -> None:
    """On resuming with the settings of the first start, and with those of the run directory, and
    on measuring."""
    init = tmp_path / "init.safetensors"
    old = write_init(init, 0)
    experiment = adapted(init, rounds=1)
    run = go(experiment, tmp_path / "run", labelled)
    before = bits(run.dir)
    new = write_init(init, 1)
    longer = {"rounds": 2}
    for wanted in (experiment, run.experiment):
        with pytest.raises(ConfigError) as raised:
            go(wanted.with_changes(longer), run.dir, labelled)
        for part in (str(init), old, new):
            assert part in str(raised.value)
    with pytest.raises(ConfigError, match=old):
        run.backbone()
    init.unlink()
    for wanted in (experiment, run.experiment):
        with pytest.raises(ConfigError, match=str(init)):
            go(wanted.with_changes(longer), run.dir, labelled)
    with pytest.raises(ConfigError, match=old):
        run.backbone()
    assert bits(run.dir) == before
    assert len(run.rounds) == 1
    write_init(init, 0)
    go(experiment.with_changes(longer), run.dir, labelled)
    assert len(run.rounds) == 2


def test_another_file_does_not_choose_another_directory(
    tmp_path: Path, labelled: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory of the same settings is found, and rejected."""
    monkeypatch.chdir(tmp_path)
    init = tmp_path / "init.safetensors"
    write_init(init, 0)
    (tmp_path / "mine.toml").write_text(adapted(init, rounds=1).to_toml())
    first = fedssl.run("mine.toml", device="cpu", dataset=labelled, quiet=True)
    again = fedssl.run("mine.toml", device="cpu", dataset=labelled, quiet=True)
    assert again.dir == first.dir
    write_init(init, 1)
    with pytest.raises(ConfigError, match="restore that file"):
        fedssl.run("mine.toml", device="cpu", dataset=labelled, quiet=True)
    assert [path.name for path in Path("runs").iterdir()] == [first.dir.name]


def test_an_absolute_path_is_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of a local federation have another current directory."""
    monkeypatch.chdir(tmp_path)
    digest = write_init(tmp_path / "init.safetensors", 0)
    experiment = adapted(Path("init.safetensors"))
    changes = absolute_init(experiment.method)
    assert changes == {"method.init": str(tmp_path / "init.safetensors")}
    monkeypatch.chdir("/")
    moved = experiment.with_changes(changes)
    assert init_changes(moved.method) == {"method.adapters.sha256": digest}
    with raises(ConfigError):
        init_changes(experiment.method)
    assert absolute_init(make_experiment().method) == {}


def test_a_file_that_was_replaced_is_hashed_again(tmp_path: Path) -> None:
    """Hashes are cached by the version of the file."""
    init = tmp_path / "init.safetensors"
    first = write_init(init, 0)
    assert file_sha256(init) == first
    second = write_init(init, 1)
    assert file_sha256(init) == second != first
