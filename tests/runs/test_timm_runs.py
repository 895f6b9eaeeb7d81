"""Whole runs with backbones of timm: exported keys, resumed bits, workers, pre-trained starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from factories import bright_dataset, interrupted_in_round, make_experiment
from safetensors.torch import load_file, save_file
from torch import Tensor

import fedssl
from fedssl.experiment.experiment import Experiment
from fedssl.runs.local import Interrupted

pytestmark = pytest.mark.oracle

HEADS = {
    "simclr": {"hidden": 8, "dim": 4},
    "byol": {"hidden": 8, "dim": 4},
    "dino": {"hidden": 8, "dim": 8, "bottleneck": 4},
    "mae": {},
}


@pytest.fixture(autouse=True)
def timm() -> Any:
    return pytest.importorskip("timm")


def _experiment(method: str, model: str, **settings: Any) -> Experiment:
    chosen = {"name": method, "backbone": f"timm:{model}", **HEADS[method]}
    experiment = make_experiment(probe__baselines=[], **settings)
    return Experiment.from_dict({**experiment.to_dict(), "method": chosen})


def _run(experiment: Experiment, folder: Path) -> fedssl.Run:
    return fedssl.run(experiment, folder, "cpu", dataset=bright_dataset(size=32), quiet=True)


def _weights(run: fedssl.Run) -> dict[str, Tensor]:
    return load_file(run.dir / "backbone.safetensors")


def _assert_same_bits(one: fedssl.Run, other: fedssl.Run) -> None:
    for name, tensor in _weights(one).items():
        assert torch.equal(_weights(other)[name], tensor), name


@pytest.mark.parametrize(
    ("method", "model", "options"),
    [
        ("simclr", "resnet10t", {}),
        ("byol", "convnext_atto", {}),
        ("simclr", "test_vit", {"dynamic_img_size": True}),
        ("byol", "test_vit", {"dynamic_img_size": True}),
        ("dino", "test_vit", {"dynamic_img_size": True}),
        ("mae", "test_vit", {"dynamic_img_size": True}),
    ],
)
def test_two_rounds_and_an_export_that_timm_loads(
    method: str, model: str, options: dict[str, bool], timm: Any, tmp_path: Path
) -> None:
    run = _run(_experiment(method, model), tmp_path / "run")
    assert len(run.rounds) == 2
    theirs = timm.create_model(model, num_classes=0, **options).eval()
    theirs.load_state_dict(_weights(run), strict=True)
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(run.backbone()(images), theirs(images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("model", ["resnet10t", "test_vit"])
def test_a_killed_run_and_two_workers_give_the_same_bits(model: str, tmp_path: Path) -> None:
    experiment = _experiment("simclr", model, train__threads=1, train__workers=1)
    whole = _run(experiment, tmp_path / "whole")
    with interrupted_in_round(2), pytest.raises(Interrupted):
        _run(experiment, tmp_path / "killed")
    _assert_same_bits(_run(experiment, tmp_path / "killed"), whole)
    two = experiment.with_changes({"train.workers": 2})
    _assert_same_bits(_run(two, tmp_path / "two"), whole)


def test_training_moves_every_tensor(timm: Any, tmp_path: Path) -> None:
    """Weights, norm layers and statistics: none is left out of training or of the mean."""
    experiment = _experiment("simclr", "resnet10t")
    still = experiment.with_changes({"train.lr": 1e-30})
    before = _weights(_run(still, tmp_path / "still"))
    after = _weights(_run(experiment, tmp_path / "moved"))
    equal = [name for name in before if torch.equal(before[name], after[name])]
    assert [name for name in equal if not name.endswith("num_batches_tracked")] == []


def test_a_run_starts_from_a_file_with_the_names_of_dinov2(
    timm: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A training checkpoint: a teacher and a student, with heads, and blocks in one chunk."""
    theirs = timm.create_model("test_vit", num_classes=0, dynamic_img_size=True).eval()
    tensors = {}
    for network in ("teacher", "student"):
        for name, tensor in theirs.state_dict().items():
            chunked = name.replace("blocks.", "blocks.0.")
            tensors[f"{network}.backbone.{chunked}"] = tensor + (network == "student")
    tensors["teacher.dino_head.mlp.weight"] = torch.ones(2)
    tensors["teacher.backbone.mask_token"] = torch.ones(1, 64)
    save_file({name: t.clone() for name, t in tensors.items()}, tmp_path / "dinov2.safetensors")
    experiment = _experiment("simclr", "test_vit").with_changes(
        {"method.init": str(tmp_path / "dinov2.safetensors"), "train.lr": 1e-30}
    )
    data = bright_dataset(size=32)
    run = fedssl.run(experiment, tmp_path / "run", "cpu", dataset=data)
    assert "not used by the backbone: student (" in capsys.readouterr().err
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(run.backbone()(images), theirs(images), rtol=1e-5, atol=1e-5)
