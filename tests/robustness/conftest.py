"""A federation small enough to be run, killed and run again many times."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import known_settings, needs_patches
from safetensors.numpy import load_file

import fedssl
from fedssl.experiment.plain_values import parse_assignment

TINY = """
rounds = 4
clients = 3
[data]
name = "npz"
path = "tiny.npz"
[method]
name = "{method}"
{small}
[method.augment]
jitter = [0.4, 0.4, 0.4, 0.1]
[train]
batch = 8
checkpoint_every = 0
[probe]
every = 0
linear = false
"""

SMALL = {"dim": 16, "hidden": 32, "queue": 32, "classes": 3, "width": 8}


class Federation:
    """A folder with an experiment, its images, and any number of run directories."""

    def __init__(self, root: Path) -> None:
        self.root = root
        random = np.random.default_rng(0)
        labels = np.arange(48) % 3
        images = (
            random.integers(0, 80, (48, 12, 12, 3)) + labels[:, None, None, None] * 60
        ).astype(np.uint8)
        (root / "data").mkdir(exist_ok=True)
        np.savez(
            root / "data/tiny.npz",
            x_train=images,
            y_train=labels,
            x_test=images[:24],
            y_test=labels[:24],
        )

    def toml(self, method: str = "simclr") -> Path:
        path = self.root / f"{method}.toml"
        backbone = "vit_mini" if needs_patches(method) else "cnn"
        small = known_settings(method, {"backbone": backbone, **SMALL})
        lines = [f"{key} = {value!r}" for key, value in small.items()]
        path.write_text(TINY.format(method=method, small="\n".join(lines)))
        return path

    def command(self, folder: str, method: str = "simclr", *sets: str) -> list[str]:
        args = [
            "run",
            str(self.toml(method)),
            "--dir",
            str(self.root / folder),
            "--data-dir",
            str(self.root / "data"),
        ]
        for text in sets:
            args += ["--set", text]
        return [sys.executable, "-m", "fedssl", *args]

    def start(
        self, folder: str, method: str = "simclr", *sets: str, **how: Any
    ) -> subprocess.Popen[str]:
        # A separate session: signals for it must not reach the tests.
        return subprocess.Popen(
            self.command(folder, method, *sets),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **how,
        )

    def run(
        self, folder: str, method: str = "simclr", *sets: str, **how: Any
    ) -> tuple[int, str, str]:
        process = self.start(folder, method, *sets, **how)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    def here(
        self, folder: str, method: str = "simclr", *sets: str, quiet: bool = True, **how: Any
    ) -> fedssl.Run:
        """Run in this process, which is quicker; the bits are the same."""
        changes = dict(map(parse_assignment, sets))
        path, data = self.root / folder, self.root / "data"
        return fedssl.run(self.toml(method), path, data_dir=data, quiet=quiet, set=changes, **how)

    def rounds(self, folder: str) -> list[dict[str, Any]]:
        path = self.root / folder / "rounds.jsonl"
        return (
            [json.loads(line) for line in path.read_text().split("\n")[:-1]]
            if path.exists()
            else []
        )

    def wait_for_round(self, folder: str, number: int, process: subprocess.Popen[str]) -> None:
        while len(self.rounds(folder)) < number and process.poll() is None:
            time.sleep(0.002)

    def hashes(self, folder: str) -> dict[str, str]:
        return _sha256(self.root / folder)


def _sha256(folder: Path) -> dict[str, str]:
    found = {}
    for file in sorted(folder.glob("backbone*.safetensors")):
        for name, tensor in load_file(file).items():
            found[f"{file.name}/{name}"] = hashlib.sha256(tensor.tobytes()).hexdigest()
    return found


@pytest.fixture
def sha256() -> Callable[[Path], dict[str, str]]:
    """Return the SHA-256 of every tensor exported to a run directory."""
    return _sha256


@pytest.fixture(scope="session")
def make_federation() -> type[Federation]:
    return Federation


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path)


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, str]]:
    """uninterrupted("byol", "rounds=4"): return the hashes of an uninterrupted run; cached."""
    known: dict[tuple[str, ...], dict[str, str]] = {}

    def hashes(method: str = "simclr", *sets: str) -> dict[str, str]:
        if (method, *sets) not in known:
            federation = Federation(tmp_path_factory.mktemp("uninterrupted"))
            federation.here("run", method, *sets)
            known[(method, *sets)] = federation.hashes("run")
            assert known[(method, *sets)]
        return known[(method, *sets)]

    return hashes


@pytest.fixture
def kill() -> Callable[[subprocess.Popen[str]], int]:
    """Send SIGKILL to a whole session, wait for it, and return the exit status."""

    def end(process: subprocess.Popen[str]) -> int:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return process.returncode

    return end
