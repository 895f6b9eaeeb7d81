"""The examples do what they claim."""

from __future__ import annotations

import runpy
from collections.abc import Mapping
from pathlib import Path

import torch

import fedssl
from fedssl.core.state.tree import model
from fedssl.engine.checkpoints.store import Store
from fedssl.experiment.experiment import load
from fedssl.experiment.federation_setup import build_method

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_one_round_in_plain_torch_gives_the_engines_weights(tmp_path: Path) -> None:
    """Clients have 160 images each and train two steps. The difference is a thousandth of the
    update.

    The order of additions differs, and with it which activations are just above zero.
    """
    changes = {"rounds": 1, "partition.share": 0.16, "train.batch": 64}
    changes |= {"train.optimizer": "sgd", "train.lr": 0.03, "train.weight_decay": 0.0}
    changes |= {"probe.every": 0, "probe.baselines": [], "probe.picture": False, "probe.epochs": 1}
    experiment = load("demo", changes)
    by_hand = runpy.run_path(str(EXAMPLES / "one_round.py"))["one_round"](experiment)
    fedssl.run(experiment, tmp_path / "run", device="cpu", quiet=True)
    snapshot = Store(tmp_path / "run").load(print)
    assert snapshot is not None
    by_engine = model(snapshot.sites["server"], "model").tensors()
    start = build_method(experiment, (1, 28, 28), torch.device("cpu")).state.tensors()
    names = [name for name, tensor in by_engine.items() if tensor.is_floating_point()]
    assert set(names) == by_hand.keys()

    def flat(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return torch.cat([tensors[name].flatten() for name in names])

    update = flat(by_engine) - flat(start)
    difference = flat(by_engine) - flat(by_hand)
    assert difference.norm() < 1e-3 * update.norm()
