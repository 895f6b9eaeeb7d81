"""P4, P5, P6: a disk that is full or returns wrong data, and a run directory of another
experiment.
"""

from __future__ import annotations

import json
import os
import re
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from error_messages import raises

import fedssl
from fedssl.core.errors import ConfigError, RunError
from fedssl.core.files import integrity
from fedssl.engine.checkpoints.store import Store


def _small_files_only() -> None:
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (150_000, 150_000)
    )  # a checkpoint of the tiny model is larger


@pytest.mark.rows("P4")
@pytest.mark.parametrize(("method", "tier"), [("simclr", "host"), ("byol", "disk")])
def test_disk_full_during_a_run(method: str, tier: str, federation: Any) -> None:
    memory = f"train.client_memory={tier}"
    federation.here("run", method, "rounds=2", memory)
    code, _, err = federation.run("run", method, "rounds=6", memory, preexec_fn=_small_files_only)
    assert code == 4
    assert "Traceback" not in err
    expected = r"fedssl: (a checkpoint|a client's memory) could not be written( to \S+)?: \[Errno 27\] File too large"
    assert re.match(expected, err.splitlines()[-1])
    snapshot = Store(federation.root / "run").load(print)
    assert snapshot is not None
    assert snapshot.rounds == 2
    federation.here("run", method, "rounds=6", memory)  # with free space it resumes
    assert [line["round"] for line in federation.rounds("run")] == [1, 2, 3, 4, 5, 6]


@pytest.mark.rows("P4")
@pytest.mark.parametrize(
    "file",
    [
        "run.lock",
        "experiment.toml",
        "images.sha256",
        "rounds.jsonl",
        "backbone.safetensors",
        "results.json",
    ],
)
def test_each_file_that_cannot_be_written(
    file: str, federation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.open
    real_descriptor = os.open

    def full_descriptor(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if str(path).endswith(file) and flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(28, os.strerror(28), str(path))
        return real_descriptor(path, flags, *args, **kwargs)

    def full(path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if file in path.name and set(mode) & set("wax"):
            raise OSError(28, os.strerror(28), str(path))
        return real(path, mode, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full)
        patch.setattr(os, "open", full_descriptor)
        with raises(RunError) as failure:
            federation.here("run", "simclr", "rounds=2")
    assert failure.value.exit_code == 4
    assert "\n" not in str(failure.value)
    federation.here("run", "simclr", "rounds=2")
    federation.here("whole", "simclr", "rounds=2")
    assert federation.hashes("run") == federation.hashes("whole")


def _manifests(folder: Path) -> list[Path]:
    return sorted((folder / "checkpoints").glob("*.json"), reverse=True)


def _newest(folder: Path) -> tuple[Path, Path]:
    manifest = _manifests(folder)[0]
    return manifest, manifest.with_suffix(".safetensors")


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _flip(path: Path, place: float = 0.6) -> None:
    data = bytearray(path.read_bytes())
    data[int(place * len(data))] ^= 1
    path.write_bytes(bytes(data))


def _row(folder: Path) -> slice:
    """Return the place of a row that only the newest checkpoint refers to."""
    new, old = (
        json.loads(json.loads(path.read_text())["body"])["memory"]
        for path in _manifests(folder)[:2]
    )
    _, offset, length, _ = next(new[client] for client in new if new[client] != old[client])
    return slice(offset, offset + length)


def _in_row(damage: Any) -> Any:
    """Return damage to one row only: the rest of the file is unchanged."""

    def harm(path: Path) -> None:
        place, data = _row(path.parents[1]), bytearray(path.read_bytes())
        alone = path.with_name("row")
        alone.write_bytes(data[place])
        damage(alone)
        left = alone.read_bytes() if alone.exists() else b""
        data[place] = left.ljust(place.stop - place.start, b"\0")
        path.write_bytes(data)
        alone.unlink(missing_ok=True)

    return harm


@pytest.mark.rows("P5")
@pytest.mark.parametrize("tier", ["host", "disk"])
@pytest.mark.parametrize(
    "damage", [_truncate, _flip, Path.unlink], ids=["truncated", "one bit", "gone"]
)
@pytest.mark.parametrize("what", ["manifest", "model", "memory"])
def test_a_damaged_checkpoint_is_replaced_by_the_one_before(
    damage: Any, what: str, tier: str, federation: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    federation.here("run", "byol", f"train.client_memory={tier}")
    whole, folder = federation.hashes("run"), federation.root / "run"
    manifest, model = _newest(folder)
    harm = _in_row(damage) if what == "memory" else damage
    harm({"manifest": manifest, "model": model, "memory": folder / "memory/rows"}[what])
    (folder / "backbone.safetensors").unlink()
    federation.here("run", "byol", quiet=False)
    err = capsys.readouterr().err
    if (what, damage) != ("manifest", Path.unlink):  # without a manifest there is no checkpoint
        assert "checkpoint 00004 is damaged" in err
    assert "resuming after round" in err
    assert federation.hashes("run") == whole
    assert [line["round"] for line in federation.rounds("run")] == [1, 2, 3, 4]


@pytest.mark.rows("P5")
@pytest.mark.parametrize("damage", [_truncate, Path.unlink], ids=["truncated", "gone"])
def test_lost_client_memory(damage: Any, federation: Any) -> None:
    """Both checkpoints need it: the run is refused instead of resumed with empty memories."""
    federation.here("run", "byol")
    folder = federation.root / "run"
    rows = folder / "memory/rows"
    rows.rename(folder / "aside") if damage is Path.unlink else rows.write_bytes(b"")
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != "run.lock"}
    with raises(RunError):
        federation.here("run", "byol", "rounds=8")
    assert {
        p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != "run.lock"
    } == before


@pytest.mark.rows("P5")
def test_no_checkpoint_is_whole(federation: Any, cli: Any) -> None:
    federation.here("run", "simclr")
    folder = federation.root / "run"
    for model in (folder / "checkpoints").glob("*.safetensors"):
        _flip(model)
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != "run.lock"}
    code, _, err = cli(*federation.command("run", "simclr", "rounds=8")[3:])
    assert code == 4
    assert "no checkpoint in" in err
    assert "nothing was changed" in err
    assert {p: p.read_bytes() for p in before} == before


@pytest.mark.rows("P5")
@pytest.mark.parametrize("key", ["rounds", "usual"])
def test_a_manifest_with_a_changed_number_is_refused(key: str, federation: Any) -> None:
    """It is valid JSON, and every file that it names is whole: only its own hash differs."""
    federation.here("run", "simclr")
    manifest, _ = _newest(federation.root / "run")
    sealed = json.loads(manifest.read_text())
    body = json.loads(sealed["body"])
    assert body[key]
    body[key] = 5 if key == "rounds" else [2 * number for number in body[key]]
    manifest.write_text(json.dumps({**sealed, "body": json.dumps(body, sort_keys=True)}))
    messages: list[str] = []
    snapshot = Store(federation.root / "run").load(messages.append)
    assert snapshot is not None
    assert snapshot.rounds == 3
    assert messages == [
        "checkpoint 00004 is damaged (its manifest does not match its hash); trying the previous one"
    ]


@pytest.mark.rows("P5")
@pytest.mark.slow
def test_a_hundred_flips(federation: Any) -> None:
    """For any flipped bit, the checkpoint is either refused or loads unchanged."""
    federation.here("run", "mocov2")
    manifest, model = _newest(federation.root / "run")
    whole = [path.read_bytes() for path in (manifest, model)]
    for turn in range(100):
        path = (manifest, model)[turn % 2]
        _flip(path, place=turn / 100)
        messages: list[str] = []
        snapshot = Store(federation.root / "run").load(messages.append)
        assert snapshot is not None
        assert snapshot.rounds < 4, f"{path.name} with bit {turn} flipped passed for whole"
        assert len(messages) == 1
        for file, data in zip((manifest, model), whole, strict=True):
            file.write_bytes(data)


REFUSED = {
    "seed": "1",
    "clients": "4",
    "data.holdout": "8",
    "partition.name": "quantity",
    "method.name": "byol",
    "method.backbone": "cnn5",
    "method.dim": "8",
    "method.temperature": "0.5",
    "method.augment.flip": "0.0",
    "algorithm.weights": "uniform",
    "topology.name": "isolated",
    "topology.participation": "0.5",
    "train.epochs": "2",
    "train.batch": "4",
    "train.lr": "0.1",
    "train.optimizer": "adam",
    "train.schedule": "constant",
    "train.threads": "2",
    "rounds": "1",
}
ALLOWED = (
    "rounds=3",
    "probe.every=1",
    "probe.k=5",
    "train.workers=1",
    "train.checkpoint_every=9",
    "probe.labels=6",
)
ALLOWED += ("train.client_memory=disk",)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory, make_federation: Any) -> Any:
    federation = make_federation(tmp_path_factory.mktemp("begun"))
    federation.here("run", "simclr", "rounds=2")
    return federation


@pytest.mark.rows("P6")
@pytest.mark.parametrize("key", REFUSED)
def test_another_experiment_is_refused_with_the_difference(key: str, begun: Any, cli: Any) -> None:
    sets = [f"{key}={REFUSED[key]}"] + (
        ["partition.alpha=1.0"] if REFUSED[key] == "quantity" else []
    )
    sets += [] if key == "rounds" else ["rounds=2"]
    before = (begun.root / "run/experiment.toml").read_text()
    (begun.root / "data").rename(begun.root / "away")  # refused before any image is read
    try:
        code, _, err = cli(*begun.command("run", "simclr", *sets)[3:])
    finally:
        (begun.root / "away").rename(begun.root / "data")
    assert code == 2
    assert f"{begun.root}/run holds a run of another experiment" in err
    assert f"{key}: " in err
    assert "Choose another --dir" in err
    assert (begun.root / "run/experiment.toml").read_text() == before


@pytest.mark.rows("P6")
def test_harmless_changes_are_allowed(federation: Any) -> None:
    federation.here("run", "simclr", "rounds=2")
    first = federation.rounds("run")
    run = federation.here("run", "simclr", *ALLOWED)
    assert federation.rounds("run")[:2] == first
    assert len(federation.rounds("run")) == 3
    assert run.experiment.rounds == 3
    assert run.results["rounds"] == 3


def test_more_rounds_with_a_constant_rate_are_the_same_as_at_once(federation: Any) -> None:
    for rounds in (1, 3):
        federation.here("run", "mocov1", "train.schedule=constant", f"rounds={rounds}")
    federation.here("whole", "mocov1", "train.schedule=constant", "rounds=3")
    assert federation.hashes("run") == federation.hashes("whole")


def test_a_longer_schedule_is_reported(federation: Any, capsys: pytest.CaptureFixture[str]) -> None:
    federation.here("run", "simclr", "rounds=1")
    federation.here("run", "simclr", "rounds=2", quiet=False)
    assert "the run is extended from 1 to 2 rounds" in capsys.readouterr().err


def test_results_of_a_shorter_run_are_not_those_of_a_longer_one(federation: Any) -> None:
    federation.here("run", "simclr", "rounds=1")
    path = federation.root / "run/experiment.toml"
    longer = path.read_text().replace(
        "rounds = 1", "rounds = 2"
    )  # like a run that was extended and killed
    integrity.write_copied(path.parent, path.name, longer)
    assert fedssl.Run(federation.root / "run").results == {}


@pytest.mark.rows("P6")
def test_other_images_in_the_same_directory(federation: Any) -> None:
    federation.here("run", "simclr", "rounds=1")
    path = federation.root / "data/tiny.npz"
    arrays = dict(np.load(path))
    arrays["x_train"][7, 0, 0, 0] ^= 1
    np.savez(path, **arrays)
    for rounds in (1, 2):
        with raises(ConfigError):
            federation.here("run", "simclr", f"rounds={rounds}")


def test_a_run_with_a_single_image_hash_resumes(federation: Any) -> None:
    """Earlier versions had no hash per client, so that a changed partition cannot be detected."""
    federation.here("run", "simclr", "rounds=1")
    path = federation.root / "run/images.sha256"
    both = path.read_text().split()
    assert len(both) == 2
    path.write_text(f"{both[0]}\n")
    federation.here("run", "simclr", "rounds=2")
    assert path.read_text().split() == both


@pytest.mark.rows("P6")
def test_the_same_images_with_another_partition(federation: Any) -> None:
    lists = federation.root / "lists.json"
    settings = ("partition.name=listed", f"partition.path={lists}", "clients=2", "rounds=1")
    lists.write_text(json.dumps({"a": list(range(20)), "b": list(range(20, 40))}))
    federation.here("run", "simclr", *settings)
    lists.write_text(json.dumps({"a": list(range(21)), "b": list(range(21, 40))}))
    with raises(ConfigError):
        federation.here("run", "simclr", *settings)


@pytest.mark.parametrize("lost", ["experiment.toml", "checkpoints"])
def test_missing_parts_of_a_run_directory(lost: str, federation: Any) -> None:
    federation.here("run", "simclr", "rounds=1")
    path = federation.root / "run" / lost
    path.rename(federation.root / "lost")
    with raises(RunError):
        federation.here("run", "simclr", "rounds=1")
    assert not path.exists()


def test_experiment_toml_is_garbage(federation: Any) -> None:
    federation.here("run", "simclr", "rounds=1")
    path = federation.root / "run/experiment.toml"
    intact = path.read_bytes()
    for garbage in (b"\xff\xfe", b"rounds = ", b""):
        path.write_bytes(garbage)
        federation.here("run", "simclr", "rounds=1")
        assert path.read_bytes() == intact
    (path.parent / "integrity.jsonl").unlink()  # as in an earlier version
    for garbage in (b"\xff\xfe", b"rounds = ", b""):
        path.write_bytes(garbage)
        with pytest.raises(ConfigError):
            federation.here("run", "simclr", "rounds=1")
