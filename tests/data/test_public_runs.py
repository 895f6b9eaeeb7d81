"""Public images in runs: the server and all clients get them, probes do not depend on them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from error_messages import raises
from public_experiments import dataset, experiment, images
from torch import Tensor

import fedssl
from fedssl.algorithm import ALGORITHMS
from fedssl.algorithms import FedAvg
from fedssl.core.errors import ConfigError, RunError
from fedssl.core.state.tree import Tree
from fedssl.evaluation.models import models_of
from fedssl.experiment import federation_setup
from fedssl.experiment.client_data import read_public
from fedssl.training.client import Client


def test_home_and_clients_get_them_and_the_number_of_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int, Tensor | None]] = []

    class Seeing(FedAvg):
        @property
        def needs_public(self) -> bool:
            return True

        def init(self, client: Client) -> Tree:
            seen.append((client.id, client.rounds, client.public))
            return super().init(client)

        def client_update(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
            seen.append((client.id, client.rounds, client.public))
            return super().client_update(client, message)

    monkeypatch.setattr(ALGORITHMS, "_classes", {**ALGORITHMS._classes, "seeing": Seeing})
    chosen = experiment(
        {"algorithm": {"name": "seeing"}, "train.workers": 1, "probe.baselines": ["random"]}
    )
    fedssl.run(chosen, tmp_path / "run", dataset=dataset(), quiet=True, device="cpu")
    public = read_public(chosen, dataset(), tmp_path, print)
    assert public is not None
    callers = []
    for caller, rounds, received in seen:
        callers.append(caller)
        assert rounds == 2
        assert received is not None
        assert torch.equal(received, public)
    assert callers[0] == "home"
    assert sorted(callers[1:]) == ["0", "0", "1", "1", "2", "2"]


def test_an_untrained_backbone_is_measured_without_the_algorithm(tmp_path: Path) -> None:
    """`random` is the initial model, not one that an algorithm trained before the first round."""
    changes = {"probe.baselines": ["random"], "probe.k": 5}
    for name in ("fedca", "fedavg"):
        chosen = experiment(changes | {"algorithm": {"name": name}})
        run = fedssl.run(chosen, tmp_path / name, dataset=dataset(), quiet=True, device="cpu")
        first = federation_setup.first_sites(
            chosen.with_changes({"algorithm": "fedavg"}),
            federation_setup.build_trainers(chosen, (3, 10, 10), torch.device("cpu"), 1)[0],
            ["0"],
        )
        score = fedssl.evaluation.evaluate.Evaluation(chosen, dataset(), torch.device("cpu"))
        expected = score.measure(models_of(chosen, first), ("knn",))["knn"].mean
        assert run.results["table"]["random"]["knn"]["mean"] == expected


def test_probes_learn_from_all_labelled_images(tmp_path: Path) -> None:
    run = fedssl.run(experiment(), tmp_path / "run", dataset=dataset(), quiet=True, device="cpu")
    assert len(run.data().train) == 120
    assert sum(c["images"] for c in run.rounds[0]["clients"]) <= 108


def test_a_run_is_not_resumed_with_other_public_images(tmp_path: Path) -> None:
    def save(seed: int) -> None:
        pixels = images(40, seed).permute(0, 2, 3, 1).numpy()
        np.savez(tmp_path / "public.npz", x_train=pixels)

    def run(rounds: int) -> fedssl.Run:
        chosen = experiment(
            {"public": {"name": "npz", "path": "public.npz", "images": 20}, "rounds": rounds}
        )
        return fedssl.run(chosen, tmp_path / "run", "cpu", tmp_path, dataset=dataset(), quiet=True)

    save(5)
    run(1)
    save(6)
    with raises(ConfigError):
        run(2)
    save(5)
    assert len(run(2).rounds) == 2
    other = experiment({"public": {"name": "npz", "path": "public.npz", "images": 21}})
    with raises(ConfigError):
        fedssl.run(other, tmp_path / "run", "cpu", tmp_path, dataset=dataset(), quiet=True)


def test_a_failure_before_the_first_round_is_reported_as_such(tmp_path: Path) -> None:
    with raises(RunError):
        fedssl.run(
            experiment({"train.lr": 1e9, "train.epochs": 20}),
            tmp_path / "run",
            "cpu",
            dataset=dataset(),
            quiet=True,
        )


def test_training_before_the_first_round_has_a_clients_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the same experiment would give other bits on a machine with more cores."""
    threads: list[int] = []

    class Counting(FedAvg):
        def init(self, client: Client) -> Tree:
            threads.append(torch.get_num_threads())
            return super().init(client)

    monkeypatch.setattr(ALGORITHMS, "_classes", {**ALGORITHMS._classes, "counting": Counting})
    before = torch.get_num_threads()
    for count in (1, 2):
        chosen = experiment({"algorithm": {"name": "counting"}, "train.threads": count})
        trainer = federation_setup.build_trainers(chosen, (3, 10, 10), torch.device("cpu"), 1)[0]
        federation_setup.first_sites(chosen, trainer, ["0"])
    assert threads == [1, 2]
    assert torch.get_num_threads() == before


def test_the_command_line_deals_without_them(
    tmp_path: Path, cli: Callable[..., tuple[int, str, str]]
) -> None:
    code, out, _ = cli(
        "partition", "demo", "--json", "--set", "algorithm=fedca", "--set", "public.images=100"
    )
    assert code == 0
    assert sum(json.loads(out)["images"].values()) == 4900
