"""Networks without memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fedssl import nets

ASK = """
import sys
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.lookup import load_values
from fedssl.method import METHODS
for name in METHODS.names():
    needed = {"classes": 10} if name == "supervised" else {}
    Experiment.from_dict({**load_values("demo"), "method": {"name": name, **needed}}).check()
print("torch._dynamo" in sys.modules)
"""


@pytest.mark.parametrize("name", nets.BACKBONES.names())
def test_a_backbone_has_shapes_and_no_numbers(name: str) -> None:
    with nets.uninitialized():
        backbone = nets.build(name, 3)
    assert {p.device.type for p in backbone.parameters()} == {"meta"}
    full = {key: value.shape for key, value in nets.build(name, 3).state_dict().items()}
    assert {key: value.shape for key, value in backbone.state_dict().items()} == full


def test_checking_an_experiment_loads_no_compiler() -> None:
    """It takes torch a second, and 70 MB, to load it."""
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
