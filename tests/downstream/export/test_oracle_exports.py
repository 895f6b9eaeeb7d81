"""Exports in torchvision, timm and onnxruntime; the printed lines load them."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from fedssl.core.errors import ConfigError
from fedssl.downstream.backbone import load_backbone
from fedssl.downstream.export import export

pytestmark = pytest.mark.oracle

RESNETS = [
    ("resnet18", "cifar", (3, 32, 32), "batch"),
    ("resnet18", "cifar", (1, 28, 28), "batch"),
    ("resnet18", "imagenet", (3, 64, 64), "batch"),
    ("resnet34", "imagenet", (1, 64, 64), "batch"),
    ("resnet50", "cifar", (3, 32, 32), "batch"),
]
GROUPS = [("resnet18", "cifar", (3, 32, 32), "group")]
VITS = [
    ("vit_tiny", "cifar", (3, 32, 32), "batch"),
    ("vit_tiny", "imagenet", (3, 64, 64), "batch"),
    ("vit_mini", "cifar", (1, 28, 28), "batch"),
]
Network = tuple[str, str, tuple[int, int, int], str]


def _export_and_run_lines(
    write_backbone: Any, folder: Path, network: Network, to: str, out: str
) -> None:
    """Export, execute the printed lines, and compare the features of their `model`."""
    name, stem, image, norm = network
    file = write_backbone(
        name=name,
        stem=stem,
        image=image,
        norm=norm,
        mean=str([0.4] * image[0]),
        std=str([0.3] * image[0]),
    )
    done = export(file, to, folder / out)
    names: dict[str, Any] = {}
    exec(done.lines, names)
    backbone = load_backbone(file)
    images = torch.rand(3, *image, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(names["model"](images), backbone(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("network", RESNETS + GROUPS, ids=str)
def test_torchvision_loads_resnets(write_backbone, tmp_path: Path, network: Network) -> None:
    pytest.importorskip("torchvision")
    _export_and_run_lines(write_backbone, tmp_path, network, "torchvision", "out.safetensors")


@pytest.mark.parametrize("network", RESNETS + VITS, ids=str)
def test_timm_loads_resnets_and_vits(
    write_backbone, tmp_path: Path, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The printed lines load the folder, and load.py does from wherever it is."""
    pytest.importorskip("timm")
    _export_and_run_lines(write_backbone, tmp_path, network, "timm", "out")
    with_config = network[0].startswith("vit") or network[1] == "imagenet"
    assert (tmp_path / "out/config.json").exists() == with_config
    monkeypatch.chdir("/")
    (tmp_path / "out").rename(tmp_path / "moved")
    moved = runpy.run_path(str(tmp_path / "moved/load.py"))
    assert not moved["model"].training


def test_timm_has_no_resnets_with_groups(write_backbone, tmp_path: Path) -> None:
    pytest.importorskip("timm")
    file = write_backbone(name="resnet18", image=(3, 32, 32), norm="group")
    with pytest.raises(ConfigError, match="groups of 16 channels"):
        export(file, "timm", tmp_path / "out")


def test_timm_resolves_the_preprocessing_of_the_configuration(
    write_backbone, tmp_path: Path
) -> None:
    """timm's own transform has the size, mean and standard deviation of the run."""
    timm = pytest.importorskip("timm")
    file = write_backbone(
        name="vit_mini", image=(3, 28, 28), mean="[0.4, 0.5, 0.6]", std="[0.1, 0.2, 0.3]"
    )
    export(file, "timm", tmp_path / "out")
    model = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True)
    config = timm.data.resolve_model_data_config(model)
    assert tuple(config["input_size"]) == (3, 28, 28)
    assert tuple(config["mean"]) == (0.4, 0.5, 0.6)
    assert tuple(config["std"]) == (0.1, 0.2, 0.3)
    assert config["interpolation"] == "bilinear"


@pytest.mark.parametrize(
    "network", [RESNETS[0], *GROUPS, VITS[1], ("cnn5", "cifar", (3, 32, 32), "batch")], ids=str
)
@pytest.mark.parametrize("normalise", [True, False])
def test_onnxruntime_computes_the_features(
    write_backbone, tmp_path: Path, network: Network, normalise: bool
) -> None:
    """`export` compares them, and batches of one, two and five images have one file."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    name, stem, image, norm = network
    file = write_backbone(name=name, stem=stem, image=image, norm=norm)
    done = export(file, "onnx", tmp_path / "out.onnx", normalise=normalise)
    assert done.comparison.difference <= done.comparison.limit < 1e-3
