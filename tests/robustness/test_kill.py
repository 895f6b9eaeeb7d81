"""P1, P7, P8: a run stopped at any moment resumes to the bits of an uninterrupted run."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedssl.core.errors import RunError
from fedssl.core.files.lock import locked
from fedssl.engine.checkpoints.store import Store
from fedssl.experiment.experiment import METHODS
from fedssl.runs import live_status

EVERY = METHODS.names()
Hashes = Callable[..., dict[str, str]]
Kill = Callable[[subprocess.Popen[str]], int]


SLOWER = "train.epochs=6"  # rounds long enough to be hit in their middle


def _killed_and_resumed(
    federation: Any,
    kill: Kill,
    folder: str,
    method: str,
    after: int,
    delay: float,
    tier: str = "auto",
) -> bool:
    """Kill a run `delay` seconds after a round and resume it; return whether it was still
    running.
    """
    process = federation.start(folder, method, SLOWER, f"train.client_memory={tier}")
    while (
        not (federation.root / folder / "checkpoints/00000.json").exists()
        and process.poll() is None
    ):
        time.sleep(0.002)
    federation.wait_for_round(folder, after, process)
    time.sleep(delay)
    killed = kill(process) == -signal.SIGKILL
    log = federation.root / folder / "rounds.jsonl"
    before = log.read_bytes().splitlines(keepends=True) if log.exists() else []
    federation.here(folder, method, SLOWER)
    if (
        killed
    ):  # a round is logged, and then saved once the one before it is on disk: two may be lost
        kept = b"".join(before[: max(0, len(before) - 2)])
        assert log.read_bytes().startswith(kept), "rounds that were saved are trained again"
    return killed


@pytest.mark.rows("P1")
@pytest.mark.parametrize("tier", ["host", "disk"])
def test_a_killed_run_resumes_to_the_same_bits(
    tier: str, federation: Any, uninterrupted: Hashes, kill: Kill
) -> None:
    # A method with client memory, killed when three of four rounds are done.
    assert _killed_and_resumed(
        federation, kill, "run", "mocov2", after=3, delay=random.uniform(0, 0.02), tier=tier
    )
    assert federation.hashes("run") == uninterrupted("mocov2", SLOWER)
    assert [line["round"] for line in federation.rounds("run")] == [1, 2, 3, 4]


@pytest.mark.rows("P1")
@pytest.mark.slow
@pytest.mark.parametrize("method", EVERY)
def test_every_method_killed_at_random_moments(
    method: str, federation: Any, uninterrupted: Hashes, kill: Kill
) -> None:
    killed = 0
    for turn, after in enumerate((0, 1, 2, 2, 3)):
        delay = random.uniform(0, 0.2)
        tier = ("host", "disk")[turn % 2]
        killed += _killed_and_resumed(federation, kill, f"run{turn}", method, after, delay, tier)
        assert federation.hashes(f"run{turn}") == uninterrupted(method, SLOWER), (after, delay)
    assert killed >= 3  # or nothing was tested


class PowerCut(BaseException):
    """Simulates a power cut: every write from a given moment on raises it."""


def _cut(monkeypatch: pytest.MonkeyPatch, after: int) -> list[str]:
    """Let the first `after` durable writes succeed and the others fail; return the calls made."""
    calls: list[str] = []
    # Every round is saved, even if the last one is still being written: otherwise the number of
    # calls would vary.
    monkeypatch.setattr(Store, "busy", False)

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread().name == live_status.THREAD:
                return real(*args, **kwargs)  # written at irregular times, and never durable
            calls.append(name)
            if len(calls) > after:
                raise PowerCut
            return real(*args, **kwargs)

        return call

    def torn(
        descriptor: int, data: memoryview, offset: int, real: Callable[..., int] = os.pwrite
    ) -> int:
        """Write half of the data, then fail."""
        calls.append("pwrite")
        if len(calls) > after:
            if len(calls) == after + 1:
                real(descriptor, data[: len(data) // 2], offset)
            raise PowerCut
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", torn)
    monkeypatch.setattr(os, "fsync", counted("fsync", os.fsync))
    for name in ("replace", "unlink", "rename"):
        monkeypatch.setattr(Path, name, counted(name, getattr(Path, name)))
    return calls


def _cuts(
    federation: Any,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    tier: str,
    moments: Callable[[int], list[int]],
) -> None:
    sets = (f"train.client_memory={tier}",)
    with monkeypatch.context() as patch:
        calls = _cut(patch, after=10**9)
        federation.here("whole", method, *sets)
    assert "pwrite" in calls
    whole = federation.hashes("whole")
    for moment in moments(len(calls)):
        with monkeypatch.context() as patch:
            _cut(patch, after=moment)
            with pytest.raises(PowerCut):
                federation.here(f"cut{moment}", method, *sets)
        federation.here(f"cut{moment}", method, *sets)
        assert federation.hashes(f"cut{moment}") == whole, (
            f"cut after {moment} of {len(calls)} calls"
        )
        assert [line["round"] for line in federation.rounds(f"cut{moment}")] == [1, 2, 3, 4]


@pytest.mark.rows("P1")
@pytest.mark.parametrize("tier", ["host", "disk"])
def test_power_cut_in_the_middle_of_writes(
    tier: str, federation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cut is between any two of sync, rename and delete, or in a write; here six cuts are spread
    over the run.
    """
    _cuts(
        federation,
        monkeypatch,
        "byol",
        tier,
        lambda count: list(range(count // 12, count, count // 6)),
    )


@pytest.mark.rows("P1")
@pytest.mark.slow
@pytest.mark.parametrize("tier", ["host", "disk"])
def test_power_cut_at_every_write(
    tier: str, federation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _cuts(federation, monkeypatch, "mocov1", tier, lambda count: list(range(count)))


LONG = (
    "train.epochs=12",
    "rounds=4",
    "train.checkpoint_every=3600",
)  # only the end of the run saves
CLIENTS = 3  # of the federation: one training each in a round

# A run whose clients wait, from round argv[2] + 1 on, until the signal has been sent: by then the
# rounds before are finished, and none of them is saved. Saving takes half a second, so that further
# signals arrive while it does.
HELD = """
import sys, threading, time
from pathlib import Path
from fedssl.cli.main import main
from fedssl.engine.checkpoints.store import Store
from fedssl.training.trainer import Trainer

root, trainings = Path(sys.argv[1]), int(sys.argv[2])
sys.argv[1:3] = []
begun, lock, fit = [], threading.Lock(), Trainer.fit

def held(self, *args, **kwargs):
    with lock:
        begun.append(self)
        late = len(begun) > trainings
    if late:
        (root / "held").touch()
        deadline = time.monotonic() + 100
        while not (root / "sent").exists() and time.monotonic() < deadline:
            time.sleep(0.002)
    return fit(self, *args, **kwargs)

def slow(self, snapshot, save=Store._save):
    time.sleep(0.5 if snapshot.rounds else 0.0)
    save(self, snapshot)

Trainer.fit, Store._save = held, slow
main()
"""


def _held_after(federation: Any, rounds: int) -> subprocess.Popen[str]:
    """Return a run in its round `rounds` + 1; the rounds before are logged but not saved."""
    words = [
        str(federation.root),
        str(rounds * CLIENTS),
        *federation.command("run", "simclr", *LONG)[3:],
        "--quiet",  # without an estimate of the time, which trains a few steps
    ]
    process = subprocess.Popen(
        [sys.executable, "-c", HELD, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not (federation.root / "held").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)
    assert [line["round"] for line in federation.rounds("run")] == [*range(1, rounds + 1)]
    assert _saved(federation) == [0]
    return process


def _saved(federation: Any) -> list[int]:
    return sorted(int(file.stem) for file in (federation.root / "run/checkpoints").glob("*.json"))


def _check_saved(
    federation: Any, rounds: int, capsys: pytest.CaptureFixture[str], whole: dict[str, str]
) -> None:
    """Check that the stopped run resumes after its last finished round, to the same bits."""
    assert _saved(federation) == [0, rounds]
    log = federation.root / "run/rounds.jsonl"
    before = log.read_bytes()
    federation.here("run", "simclr", *LONG, quiet=False)
    assert f"resuming after round {rounds} of 4" in capsys.readouterr().err
    assert log.read_bytes().startswith(
        before
    )  # durations included: a round that is trained again has another
    assert [line["round"] for line in federation.rounds("run")] == [1, 2, 3, 4]
    assert federation.hashes("run") == whole


@pytest.mark.rows("P8")
@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM]
)
def test_a_signal_saves_finished_rounds(
    number: int, federation: Any, uninterrupted: Hashes, capsys: pytest.CaptureFixture[str]
) -> None:
    """A signal in round 3, when rounds 1 and 2 are finished and not saved: both are saved within
    ten seconds.
    """
    process = _held_after(federation, 2)
    asked = time.monotonic()
    process.send_signal(number)
    (federation.root / "sent").touch()
    _, err = process.communicate(timeout=60)
    assert time.monotonic() - asked < 10
    assert process.returncode == 130
    assert (
        err.splitlines()[-1]
        == "fedssl: stopped after round 2 of 4; the same command resumes the run"
    )
    assert "Traceback" not in err
    _check_saved(federation, 2, capsys, uninterrupted("simclr", *LONG))


@pytest.mark.rows("P8")
def test_further_signals_do_not_interrupt_saving(
    federation: Any, uninterrupted: Hashes, capsys: pytest.CaptureFixture[str]
) -> None:
    """Signals during the save do not cut it short."""
    process = _held_after(federation, 2)
    process.send_signal(signal.SIGINT)
    (federation.root / "sent").touch()
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.003)
    _, err = process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in err
    _check_saved(federation, 2, capsys, uninterrupted("simclr", *LONG))


@pytest.mark.rows("P1")
def test_killed_while_a_comparison_trains(federation: Any, kill: Kill) -> None:
    sets = ("probe.baselines=['isolated']", "rounds=3")
    federation.here("whole", "simclr", *sets)
    process = federation.start("run", "simclr", *sets)
    federation.wait_for_round("run/isolated", 1, process)
    kill(process)
    measured = json.loads((federation.root / "run/results.json").read_text())
    assert list(measured["table"]) == ["this run"]  # the baseline is missing
    before = federation.rounds("run")
    federation.here("run", "simclr", *sets)
    # The run itself was finished and is not trained again.
    assert federation.rounds("run") == before
    results = [(federation.root / f"{name}/results.json").read_text() for name in ("run", "whole")]
    assert results[0] == results[1]


@pytest.mark.rows("P7")
def test_two_processes_on_one_directory(federation: Any, kill: Kill) -> None:
    first = federation.start("run", "simclr", "train.epochs=2000")
    while not (federation.root / "run/checkpoints/00000.json").exists():
        assert first.poll() is None
        time.sleep(0.01)
    with pytest.raises(RunError, match=f"in use by process {first.pid}; nothing was changed"):
        federation.here("run", "simclr", "train.epochs=2000")
    assert kill(first) == -signal.SIGKILL
    with locked(federation.root / "run"):  # a dead one's lock is taken over
        assert (federation.root / "run/run.lock").read_text() == str(os.getpid())


@pytest.mark.rows("P8")
def test_interrupted_while_images_are_read(federation: Any, kill: Kill) -> None:
    from PIL import Image

    folder = federation.root / "data/many"
    folder.mkdir()
    Image.effect_noise((2000, 2000), 90).save(folder / "0.png")
    for n in range(1, 100):
        os.link(folder / "0.png", folder / f"{n}.png")
    sets = ("data.name=folder", "data.path=many", "data.layout=flat", "data.size=8")
    process = federation.start("run", "simclr", *sets)
    while "decoding" not in process.stderr.readline():
        assert process.poll() is None
    time.sleep(0.2)
    asked = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert time.monotonic() - asked < 10
    assert process.returncode == 130
    assert err.splitlines()[-1] == "fedssl: stopped"
    assert "Traceback" not in err
    assert not (federation.root / "run").exists()
