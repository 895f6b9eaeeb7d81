"""Whole runs on CUDA: a resumed deterministic run has the same bits for any number of workers."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from factories import interrupted_in_round
from safetensors.numpy import load_file

import fedssl
from fedssl.runs.local import Interrupted

SETTINGS: dict[str, Any] = {
    "rounds": 3,
    "method.name": "mocov2",  # its memory has a target and a queue
    "method.backbone": "resnet18",
    "method.hidden": 256,
    "train.optimizer": "sgd",
    "train.lr": 0.03,
    "train.deterministic": True,
    "train.checkpoint_every": 0,
    "probe.every": 0,
    "probe.baselines": [],
    "probe.picture": False,
    "probe.epochs": 1,
}


def digest(folder: Path, **changes: Any) -> str:
    fedssl.run("demo", folder, device="cuda", quiet=True, set=SETTINGS | changes)
    tensors = load_file(folder / "backbone.safetensors")
    return hashlib.sha256(b"".join(tensors[name].tobytes() for name in sorted(tensors))).hexdigest()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> str:
    return digest(tmp_path_factory.mktemp("run") / "run")


def test_a_resumed_run_has_the_same_bits(uninterrupted: str, tmp_path: Path) -> None:
    with interrupted_in_round(2), pytest.raises(Interrupted):
        digest(tmp_path / "run")
    assert digest(tmp_path / "run") == uninterrupted


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_do_not_change_the_bits(workers: int, uninterrupted: str, tmp_path: Path) -> None:
    assert digest(tmp_path / "run", **{"train.workers": workers}) == uninterrupted
