"""Runs with adapters: what is trained, sent, exported and measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from factories import bright_dataset, make_experiment
from safetensors.torch import load_file
from torch import Tensor

import fedssl
from fedssl import nets
from fedssl.core.state.state import State
from fedssl.data import Dataset
from fedssl.engine.checkpoints.store import Store
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.federation_setup import build_method, build_trainers
from fedssl.experiment.trained_backbone import TrainedBackbones

CPU = torch.device("cpu")
IMAGE = (3, 8, 8)
RANK = 2
ALPHA = 6.0
Adapt = Callable[..., Experiment]


@pytest.fixture
def adapt(tmp_path: Path) -> Adapt:
    """Return a function that makes an experiment that adapts a backbone with fixed weights."""

    def make(backbone: str = "vit_mini", **settings: Any) -> Experiment:
        init = tmp_path / f"{backbone}.safetensors"
        with torch.random.fork_rng():
            torch.manual_seed(4)
            nets.save_backbone(nets.build(backbone).state_dict(), init, {})
        method = {
            "backbone": backbone,
            "init": str(init),
            "adapters": {"rank": RANK, "alpha": ALPHA},
        }
        return make_experiment({"method": method}, **settings)

    return make


@pytest.fixture(scope="module")
def labelled() -> Dataset:
    return bright_dataset(size=8)


def train(experiment: Experiment, folder: Path, data: Dataset) -> fedssl.Run:
    return fedssl.run(experiment, folder, "cpu", dataset=data, quiet=True)


def site_model(folder: Path) -> State:
    snapshot = Store(folder).load(lambda line: None)
    assert snapshot is not None
    model = snapshot.sites["server"]["model"]
    assert isinstance(model, State)
    return model


def merged_by_hand(frozen: dict[str, Tensor], state: State) -> dict[str, Tensor]:
    """Return W0 + (α/r)·B·A of linear layers, norm layers as trained, and all else as it was."""
    expected = dict(frozen)
    trained = state.pick(("backbone",)).without_prefix("backbone").tensors()
    for name, tensor in trained.items():
        layer, _, leaf = name.rpartition(".")
        if leaf == "lora_B":
            change = ALPHA / RANK * tensor @ trained[f"{layer}.lora_A"]
            expected[f"{layer}.weight"] = frozen[f"{layer}.weight"] + change
        elif leaf != "lora_A":
            expected[name] = tensor
    return expected


def test_a_run_exports_merged_weights_under_the_names_of_the_plain_backbone(
    adapt: Adapt, labelled: Dataset, tmp_path: Path
) -> None:
    experiment = adapt(algorithm="fedema", probe__every=1)
    run = train(experiment, tmp_path / "run", labelled)
    frozen = load_file(tmp_path / "vit_mini.safetensors")
    exported = load_file(run.dir / "backbone.safetensors")
    expected = merged_by_hand(frozen, site_model(run.dir))
    assert exported.keys() == frozen.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(exported[name], tensor)
    for name, tensor in frozen.items():
        is_matrix = name.startswith("blocks.") and tensor.dim() == 2
        changed = "norm" in name or is_matrix
        assert torch.equal(exported[name], tensor) is not changed, name
    other = nets.build("vit_mini")
    nets.load_backbone(other, run.dir / "backbone.safetensors")
    for name, tensor in run.backbone().state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name])
    assert [line["knn"] for line in run.rounds] != [None, None]


def test_uploads_have_the_trained_weights_only(
    adapt: Adapt, labelled: Dataset, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A block's matrices 64→192, 64→64, 64→256 and 256→64 have factors of rank 2 with 2·(256 + 128
    + 320 + 320) = 2,048 weights; four blocks 8,192. Nine norm layers have 128 each: 1,152.

    BYOL's projector 64→8→4 has 520 + 16 + 36 weights, its predictor 4→8→4 has 40 + 16 + 36: 664,
    and two BatchNorm layers with 8 means, 8 variances and a counter each.
    """
    run = fedssl.run(adapt(), tmp_path / "run", "cpu", dataset=labelled)
    weights = 8_192 + 1_152 + 664 + 2 * 16
    sent = 4 * weights + 2 * 8
    for line in run.rounds:
        assert [client["bytes_up"] for client in line["clients"]] == [sent] * 3
        assert [client["bytes_down"] for client in line["clients"]] == [sent] * 3
    whole = sum(tensor.numel() for tensor in nets.build("vit_mini").parameters())
    printed = capfd.readouterr().err
    assert f"training vit_mini ({whole:,} weights)" in printed
    everything = sent + 4 * (whole - 1_152 - 8_192)
    assert (
        f"adapters: 9,344 weights are trained and sent instead of the backbone's {whole:,}; an "
        f"upload has {sent / 1e6:.2f} MB instead of {everything / 1e6:.2f} MB\n"
    ) in printed


def test_a_checkpoint_holds_no_frozen_weights(
    adapt: Adapt, labelled: Dataset, tmp_path: Path
) -> None:
    run = train(adapt(rounds=1), tmp_path / "run", labelled)
    state = site_model(run.dir)
    frozen = load_file(tmp_path / "vit_mini.safetensors")
    for name in ("blocks.0.attn.qkv.weight", "blocks.0.attn.qkv.bias", "pos_embed", "cls_token"):
        assert name in frozen
        assert f"backbone.{name}" not in state.layout.offsets


def test_features_of_the_merged_backbone_are_those_of_the_trained_method(
    adapt: Adapt, labelled: Dataset, tmp_path: Path
) -> None:
    experiment = adapt("cnn")
    run = train(experiment, tmp_path / "run", labelled)
    state = site_model(run.dir)
    method = build_method(run.experiment, IMAGE, CPU).eval()
    method.state.load(state)
    images = method.clean(labelled.train.pixels)
    with torch.no_grad():
        expected = method.encode(images).h
        features = TrainedBackbones(run.experiment, 3).module(state)(images)
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5)
    untouched = build_method(run.experiment, IMAGE, CPU).eval()
    assert not torch.allclose(untouched.encode(images).h, expected, atol=1e-3)


def test_workers_share_the_frozen_weights(adapt: Adapt) -> None:
    experiment = adapt(train__workers=2)
    first, second = build_trainers(experiment, IMAGE, CPU, clients=2)
    one = first.method.backbone.get_buffer("blocks.0.attn.qkv.weight")
    other = second.method.backbone.get_buffer("blocks.0.attn.qkv.weight")
    target = second.method.target["backbone"].get_buffer("blocks.0.attn.qkv.weight")
    assert one is other
    assert one is target
    assert first.method.state.floats.data_ptr() != second.method.state.floats.data_ptr()


def test_two_workers_train_what_one_trains(adapt: Adapt, labelled: Dataset, tmp_path: Path) -> None:
    one = train(adapt(train__workers=1), tmp_path / "one", labelled)
    two = train(adapt(train__workers=2), tmp_path / "two", labelled)
    assert torch.equal(site_model(one.dir).floats, site_model(two.dir).floats)


@pytest.mark.parametrize("algorithm", ["fedbn", "fedu", "fedprox", "perssfl", "featarc"])
def test_algorithms_train_adapters(
    algorithm: str, adapt: Adapt, labelled: Dataset, tmp_path: Path
) -> None:
    """Every exported model has all weights of the plain backbone."""
    run = train(adapt("cnn", algorithm=algorithm), tmp_path / "run", labelled)
    names = load_file(tmp_path / "cnn.safetensors").keys()
    exported = sorted(run.dir.glob("backbone*.safetensors"))
    assert exported
    for file in exported:
        assert load_file(file).keys() == names
    for model in run.models():
        assert run.backbone(model)(torch.rand(2, 3, 8, 8)).shape == (2, 512)


def test_the_random_baseline_has_random_weights(
    adapt: Adapt, labelled: Dataset, tmp_path: Path
) -> None:
    """It is the untrained backbone of the seed, as without adapters."""
    adapted = train(adapt("cnn", probe__baselines=["random"]), tmp_path / "run", labelled)
    plain = make_experiment(method__backbone="cnn", probe__baselines=["random"])
    usual = train(plain, tmp_path / "plain", labelled)
    assert adapted.results["table"]["random"] == usual.results["table"]["random"]


@pytest.mark.slow
def test_privacy_noise_covers_the_adapters(adapt: Adapt, labelled: Dataset, tmp_path: Path) -> None:
    private = {"noise": 0.5, "clip": 1.0}
    experiment = adapt("vit_mini", rounds=1, privacy=private, guard__max_share=1.0)
    experiment = experiment.with_changes({"method.norm": "group"})
    run = train(experiment, tmp_path / "run", labelled)
    first = build_method(run.experiment, IMAGE, CPU).state
    after = site_model(run.dir)
    name = "backbone.blocks.0.attn.qkv.lora_A"
    assert not torch.equal(first.tensors()[name], after.tensors()[name])
    frozen = load_file(tmp_path / "vit_mini.safetensors")
    exported = load_file(run.dir / "backbone.safetensors")
    assert torch.equal(exported["pos_embed"], frozen["pos_embed"])


@pytest.mark.slow
def test_a_resnet_with_fedema_and_byol(adapt: Adapt, labelled: Dataset, tmp_path: Path) -> None:
    run = train(adapt("resnet18", algorithm="fedema"), tmp_path / "run", labelled)
    frozen = load_file(tmp_path / "resnet18.safetensors")
    exported = load_file(run.dir / "backbone.safetensors")
    assert torch.equal(exported["conv1.weight"], frozen["conv1.weight"])
    assert not torch.equal(exported["layer1.0.conv1.weight"], frozen["layer1.0.conv1.weight"])
    assert all(client["notes"]["drift"] > 0 for client in run.rounds[1]["clients"])
