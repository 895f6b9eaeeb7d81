"""A killed sweep resumes; finished cells are not repeated, and no process is left running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from fedssl.core.provenance import code
from fedssl.paper_tables.plan import Measure, Training, plan_seeds
from fedssl.paper_tables.published import Cell
from fedssl.paper_tables.scheduler import Pool, devices

SWEEP = [
    "--set",
    "train.lr=0.01,0.02",
    "--set",
    "train.epochs=4",
    "--set",
    "rounds=6",
    "--set",
    "probe.epochs=2",
]


def _command(federation: Any, folder: str, *more: str) -> list[str]:
    where = [
        "--dir",
        str(federation.root / folder),
        "--data-dir",
        str(federation.root / "data"),
        "--device",
        "cpu",
    ]
    toml = str(federation.toml())
    return [sys.executable, "-m", "fedssl", "sweep", toml, *SWEEP, "--seeds", "1", *where, *more]


def _values(federation: Any, folder: str) -> dict[str, Any]:
    (file,) = (federation.root / folder).glob("sweep-*.json")
    cells = json.loads(file.read_text("utf-8"))["cells"]
    return {cell["row"]: [seed["value"] for seed in cell["seeds"]] for cell in cells}


def _trained(root: Path) -> list[Path]:
    return sorted(root.glob("*/results.json"))


def _worker(parent: int) -> list[int]:
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True
    )
    return [int(word) for word in listed.stdout.split()]


@pytest.mark.slow
def test_a_killed_sweep_resumes_and_loses_nothing(federation: Any) -> None:
    subprocess.run(_command(federation, "whole"), check=True, capture_output=True)
    whole = _values(federation, "whole")
    assert len(whole) == 2

    root = federation.root / "killed"
    process = subprocess.Popen(
        _command(federation, "killed"), stderr=subprocess.DEVNULL, start_new_session=True
    )
    while (
        len(_trained(root)) < 1 or len([*root.glob("*/rounds.jsonl")]) < 2
    ):  # one is done, the other has begun
        assert process.poll() is None
        time.sleep(0.01)
    (done,) = _trained(root)
    (worker,) = _worker(process.pid)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while (
        Path(f"/proc/{worker}/stat").exists()
        and Path(f"/proc/{worker}/stat").read_text().split()[2] != "Z"
    ):
        assert time.monotonic() < deadline, "its process trains on"
        time.sleep(0.05)

    before = done.stat().st_mtime_ns, (done.parent / "rounds.jsonl").read_bytes()
    made = subprocess.run(
        _command(federation, "killed", "--json"), check=True, capture_output=True, text=True
    )
    assert (done.stat().st_mtime_ns, (done.parent / "rounds.jsonl").read_bytes()) == before
    assert _values(federation, "killed") == whole
    assert {cell["row"] for cell in json.loads(made.stdout)["cells"]} == set(whole)
    for folder in {path.parent for path in _trained(root)}:
        lines = (folder / "rounds.jsonl").read_text().splitlines()
        assert [json.loads(line)["round"] for line in lines] == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_a_failed_cell_is_reported_and_the_others_continue(federation: Any) -> None:
    where = [
        "--dir",
        str(federation.root / "some"),
        "--data-dir",
        str(federation.root / "data"),
        "--device",
        "cpu",
    ]
    changes = [
        "--set",
        "data.path=tiny.npz,nosuch.npz",
        "--set",
        "rounds=1",
        "--set",
        "probe.epochs=1",
    ]
    command = [
        sys.executable,
        "-m",
        "fedssl",
        "sweep",
        str(federation.toml()),
        *changes,
        "--seeds",
        "1",
        *where,
    ]
    made = subprocess.run(command, capture_output=True, text=True)
    assert made.returncode == 1
    (file,) = (federation.root / "some").glob("sweep-*.json")
    good, bad = json.loads(file.read_text("utf-8"))["cells"]
    assert (good["state"], bad["state"]) == ("done", "failed")
    assert "nosuch.npz" in bad["problem"]
    assert "nosuch.npz" in made.stdout
    assert "Traceback" not in made.stderr


@pytest.mark.slow
def test_each_measurement_is_made_once_and_fails_alone(federation: Any) -> None:
    """The second measurement is invalid; the first one is stored and not repeated."""
    cell = Cell("r", "c", str(federation.toml()), "knn", set=("rounds=1", "probe.epochs=1"))
    root = federation.root / "one"
    (plan,) = plan_seeds([cell], "", [0], root, torch.device("cpu"))
    assert plan.training is not None
    assert plan.measure is not None
    folder = plan.training.folder
    invalid = Measure("linear", (("labels", -1),))
    todo = {plan.training: [plan.measure, invalid]}
    problems = _run(todo, federation)
    assert list(problems) == [invalid.file]
    assert "labels" in problems[invalid.file]
    file = folder / "measures" / plan.measure.file
    measurement = json.loads(file.read_text())
    assert (measurement["experiment"], measurement["code"]) == (plan.training.key, code())
    by_class = json.loads((folder / "classes.json").read_text())["table"]["this run"]["knn"]
    assert {key: measurement[key] for key in by_class} == by_class
    results = json.loads((folder / "results.json").read_text())
    assert measurement["value"] == results["table"]["this run"]["knn"]["mean"]
    stamp = file.stat().st_mtime_ns
    assert _run(todo, federation).keys() == {invalid.file}
    assert file.stat().st_mtime_ns == stamp


def _run(todo: Mapping[Training, Sequence[Measure]], federation: Any) -> dict[str, str]:
    """Return the problems of one training."""
    pool = Pool(todo, ["cpu"], federation.root / "data")
    ended = pool.next_ended(60)
    assert ended is not None
    return ended[1]


@pytest.mark.slow
def test_a_dead_training_process_does_not_affect_others(federation: Any) -> None:
    root = federation.root / "died"
    process = subprocess.Popen(
        _command(federation, "died"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    while not [*root.glob("*/rounds.jsonl")]:
        assert process.poll() is None
        time.sleep(0.01)
    (worker,) = _worker(process.pid)
    os.kill(worker, signal.SIGKILL)
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "its process was killed (SIGKILL)" in printed
    assert len(_trained(root)) == 1
    assert sorted(value is None for (value,) in _values(federation, "died").values()) == [
        False,
        True,
    ]


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["importing", "training"])
def test_ctrl_c_ends_all_processes_and_the_same_command_resumes(
    federation: Any, moment: str
) -> None:
    """At the start of the training process, or in the middle of the second training."""
    root = federation.root / "stopped"
    process = subprocess.Popen(
        _command(federation, "stopped"), stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while not _worker(process.pid):
        assert process.poll() is None
        time.sleep(0.01)
    if moment == "training":
        while len([*root.glob("*/rounds.jsonl")]) < 2:
            assert process.poll() is None
            time.sleep(0.01)
    (worker,) = _worker(process.pid)
    done = {path: path.stat().st_mtime_ns for path in _trained(root)}
    process.send_signal(signal.SIGINT)
    _, printed = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (
        printed.splitlines()[-1]
        == "fedssl: stopped; finished trainings are saved, run the same command again to resume"
    )
    assert not Path(f"/proc/{worker}").exists()
    logs = "".join(log.read_text() for log in root.glob("*/log.txt"))
    assert not any(word in printed + logs for word in ("Traceback", "Fatal"))
    if moment == "training":
        assert len(done) == 1
        assert "stopped after round" in logs
    subprocess.run(_command(federation, "stopped"), check=True, capture_output=True)
    assert {path: path.stat().st_mtime_ns for path in done} == done
    subprocess.run(_command(federation, "whole"), check=True, capture_output=True)
    assert _values(federation, "stopped") == _values(federation, "whole")


@pytest.mark.slow
def test_trainings_are_spread_over_devices(federation: Any) -> None:
    """Two processes at once; the CPU under two names represents two devices."""
    cell = Cell("r", "c", str(federation.toml()), "knn", (), ("rounds=4", "train.epochs=8"))
    todo = {
        want.training: [want.measure]
        for want in plan_seeds(
            [cell], "", range(2), federation.root / "spread", torch.device("cpu")
        )
        if want.training is not None and want.measure is not None
    }
    pool, most = Pool(todo, ["cpu:0", "cpu:1"], federation.root / "data"), 0
    while pool.busy:
        most = max(most, len(pool.running))
        time.sleep(0.01)
    assert most == 2
    ended = {
        training: problems
        for _ in todo
        if (found := pool.next_ended(0))
        for training, problems in [found]
    }
    assert ended == {training: {} for training in todo}


def test_cuda_means_all_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert devices(torch.device("cuda")) == ["cuda:0", "cuda:1"]
    assert devices(torch.device("cuda:1")) == ["cuda:1"]
    assert devices(torch.device("cpu")) == ["cpu"]
