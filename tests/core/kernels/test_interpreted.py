"""The kernels' arithmetic without a GPU: Triton's interpreter runs them in float32, against plain
torch.

They run in a subprocess, because the interpreter must be chosen before Triton is imported.
tests/gpu covers bfloat16, memory order and speed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedssl.experiment.experiment import METHODS

SCRIPT = Path(__file__).with_name("interpreted.py")

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason="Triton is not installed"
    ),
]


@pytest.fixture(scope="module")
def differences() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, SCRIPT],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize(
    "what", ["plain", "groups", "residual", "two readers", "odd channels", "rows", "no relu"]
)
def test_normalisation(what: str, differences: dict[str, Any]) -> None:
    """Largest relative differences of the result, all gradients and the running statistics."""
    assert max(differences["norm"][what].values()) < 2e-5


def test_update(differences: dict[str, Any]) -> None:
    assert differences["sgd"] < 1e-6
    assert differences["follow"] < 1e-6
    assert differences["lerp"] < 1e-6


@pytest.mark.parametrize("name", METHODS.names())
def test_training(name: str, differences: dict[str, Any]) -> None:
    """Four steps of a method, fused and plain, from the same weights on the same images.

    The smaller difference of two seeds counts: if the input of a ReLU is 0 up to rounding, its
    gradient may differ. Two trainings in plain torch whose first weights differ by 1e-7 then differ
    as much.
    """
    assert min(differences["training"][name]) < 1e-5
