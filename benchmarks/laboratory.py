"""Small runs in separate processes, which benchmarks.chaos interrupts and compares."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedssl.engine.checkpoints.store import Store

EXPERIMENT = """
rounds = 4
clients = 3
[data]
name = "npz"
path = "tiny.npz"
[method]
name = "mocov2"
backbone = "cnn"
hidden = 32
dim = 16
queue = 32
[method.augment]
jitter = [0.4, 0.4, 0.4, 0.1]
[train]
batch = 8
epochs = 4
checkpoint_every = 0
client_memory = "disk"
[probe]
every = 0
linear = false
baselines = []
"""


class Final(NamedTuple):
    """The result of a run: hashes of its backbone's file and of its last checkpoint."""

    backbone: str
    checkpoint: str | None


class Laboratory:
    """A folder with images, an experiment and any number of its runs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        generator = np.random.default_rng(0)
        labels = np.arange(48) % 3
        noise = generator.integers(0, 80, (48, 12, 12, 3))
        images = (noise + labels[:, None, None, None] * 60).astype(np.uint8)
        (root / "data").mkdir()
        np.savez(
            root / "data/tiny.npz",
            x_train=images,
            y_train=labels,
            x_test=images[:24],
            y_test=labels[:24],
        )
        (root / "experiment.toml").write_text(EXPERIMENT)

    def start(self, folder: Path, **how: Any) -> subprocess.Popen[str]:
        """Start a run in a new process group."""
        command = [sys.executable, "-m", "fedssl", "run", str(self.root / "experiment.toml")]
        command += ["--dir", str(folder), "--data-dir", str(self.root / "data"), "--device", "cpu"]
        return subprocess.Popen(  # nosec B603 # this Python
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **how,
        )

    def finish(self, folder: Path, **how: Any) -> tuple[int, str]:
        """Run to the end; return the exit code and standard error."""
        process = self.start(folder, **how)
        _, errors = process.communicate()
        return process.returncode, errors


def final_of(folder: Path) -> Final:
    """Return the result of a finished run."""
    backbone = hashlib.sha256((folder / "backbone.safetensors").read_bytes()).hexdigest()
    return Final(backbone, Store(folder).digest())


def logged_rounds(folder: Path) -> int:
    """Return the number of whole lines in the rounds log."""
    log = folder / "rounds.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def saved_rounds(folder: Path) -> int:
    """Return the round of the newest checkpoint; 0 if there is none."""
    numbers = [int(path.stem) for path in (folder / "checkpoints").glob("*.json")]
    return max(numbers, default=0)


def uninterrupted(laboratory: Laboratory) -> tuple[Final, float]:
    """Return the result of a run without faults, and its duration in seconds."""
    started = time.monotonic()
    folder = laboratory.root / "uninterrupted"
    code, errors = laboratory.finish(folder)
    if code:
        raise SystemExit(f"the uninterrupted run failed: {errors}")
    return final_of(folder), time.monotonic() - started


def kill(process: subprocess.Popen[str]) -> None:
    """Send SIGKILL to a run and to the processes that it has started; wait for its end."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
