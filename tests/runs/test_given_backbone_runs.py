"""Runs with a backbone that is passed from Python, and registered ones with layers of torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from error_messages import raises
from factories import bright_dataset, interrupted_in_round, make_experiment
from safetensors.torch import load_file
from torch import Tensor, nn

import fedssl
from fedssl.core.errors import ConfigError
from fedssl.experiment.experiment import Experiment
from fedssl.nets import BACKBONES, Backbone, given_backbone
from fedssl.runs.local import Interrupted

SIMCLR = {"method": {"name": "simclr", "hidden": 8, "dim": 4}}


class Net(nn.Module):
    """Six features, with layers of torch that fedssl changes: BatchNorm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, stride=2)
        self.norm = nn.BatchNorm2d(6)
        self.drop = nn.Dropout(0.5)
        self.dim = 6

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.drop(self.norm(self.conv(images)).relu().mean((2, 3)))
        return features


@pytest.fixture(autouse=True)
def _nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_backbone, "_given", {})


@pytest.fixture
def experiment() -> Experiment:
    return make_experiment({**SIMCLR, "probe.baselines": []})


def _weights(run: fedssl.Run) -> dict[str, Tensor]:
    return load_file(run.dir / "backbone.safetensors")


def test_a_run_with_a_function_and_its_backbone(experiment: Experiment, tmp_path: Path) -> None:
    run = fedssl.run(
        experiment, tmp_path / "run", dataset=bright_dataset(), backbone=Net, quiet=True
    )
    assert run.experiment.method.backbone.startswith("given:Net-")
    backbone = run.backbone()
    assert isinstance(backbone, Net)
    assert _weights(run).keys() == Net().state_dict().keys()
    plain = Net().eval()
    plain.load_state_dict(_weights(run))
    images = torch.rand(2, 3, 10, 10)
    assert torch.equal(backbone(images), plain(images))


def test_a_killed_run_resumes_with_the_same_bits(experiment: Experiment, tmp_path: Path) -> None:
    data = bright_dataset()
    whole = fedssl.run(experiment, tmp_path / "whole", dataset=data, backbone=Net, quiet=True)
    with interrupted_in_round(2), pytest.raises(Interrupted):
        fedssl.run(experiment, tmp_path / "killed", dataset=data, backbone=Net, quiet=True)
    resumed = fedssl.run(experiment, tmp_path / "killed", dataset=data, backbone=Net, quiet=True)
    assert len(resumed.rounds) == 2
    for name, tensor in _weights(whole).items():
        assert torch.equal(_weights(resumed)[name], tensor), name


def test_a_module_is_the_start_of_training(experiment: Experiment, tmp_path: Path) -> None:
    module = Net()
    run = fedssl.run(
        experiment,
        tmp_path / "run",
        dataset=bright_dataset(),
        backbone=module,
        quiet=True,
        train={"lr": 1e-12},
    )
    torch.testing.assert_close(
        _weights(run)["conv.weight"], module.conv.weight.detach(), rtol=0, atol=1e-6
    )


def test_a_run_is_resumed_only_with_the_same_backbone(
    experiment: Experiment, tmp_path: Path
) -> None:
    module = Net()
    data = bright_dataset()
    torch.nn.init.ones_(module.conv.weight)
    fedssl.run(experiment, tmp_path / "run", dataset=data, backbone=module, quiet=True)
    wider = Net()
    wider.conv.dilation = (2, 2)
    for other in (wider, Net(), "cnn"):
        with pytest.raises(ConfigError):
            fedssl.run(
                experiment, tmp_path / "run", dataset=data, backbone=other, quiet=True, rounds=3
            )
    longer = fedssl.run(
        experiment, tmp_path / "run", dataset=data, backbone=module, quiet=True, rounds=3
    )
    assert len(longer.rounds) == 3


def test_another_process_needs_the_backbone_again(experiment: Experiment, tmp_path: Path) -> None:
    run = fedssl.run(
        experiment, tmp_path / "run", dataset=bright_dataset(), backbone=Net, quiet=True
    )
    images = torch.rand(2, 3, 10, 10)
    expected = run.backbone()(images)
    given_backbone._given.clear()
    with pytest.raises(ConfigError, match="passed from Python"):
        fedssl.Run(run.dir).backbone()
    assert torch.equal(fedssl.Run(run.dir, backbone=Net).backbone()(images), expected)
    with pytest.raises(ConfigError, match="pass a module with the same layers"):
        fedssl.Run(run.dir, backbone="resnet18")


def test_a_backbone_that_draws_random_numbers_is_rejected_before_training(
    experiment: Experiment, tmp_path: Path
) -> None:
    class Noisy(Net):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images) + torch.rand(1)

    with raises(ConfigError):
        fedssl.run(
            experiment, tmp_path / "run", dataset=bright_dataset(), backbone=Noisy, quiet=True
        )
    assert not (tmp_path / "run" / "rounds.jsonl").exists()


def test_a_registered_backbone_may_have_layers_of_torch(
    experiment: Experiment, own_modules: Path
) -> None:
    @BACKBONES.register("mine")
    class Mine(Backbone):
        def __init__(self, channels: int = 3, stem: str = "cifar") -> None:
            super().__init__()
            self.net = Net()
            self.dim = 6

        def forward(self, images: Tensor) -> Tensor:
            features: Tensor = self.net(images)
            return features

    run = fedssl.run(
        experiment, own_modules / "run", dataset=bright_dataset(), backbone="mine", quiet=True
    )
    assert isinstance(run.backbone(), Mine)
    assert "net.norm.running_mean" in _weights(run)


def test_the_start_is_the_baseline_of_a_run_with_weights(tmp_path: Path) -> None:
    """With a learning rate of 10⁻¹² nothing is learned: the gain over the start is 0."""
    quick = make_experiment({**SIMCLR, "probe.baselines": None, "probe.linear": False})
    run = fedssl.run(
        quick.with_changes({"train.lr": 1e-12, "train.epochs": 1}),
        tmp_path / "run",
        dataset=bright_dataset(),
        backbone=Net(),
        quiet=True,
    )
    table = run.results["table"]
    assert list(table) == ["this run", "start", "isolated"]
    sentence = run.results["verdict"]["sentence"]
    assert sentence.startswith("no clear difference from the weights that training started from")
