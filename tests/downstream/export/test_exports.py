"""Exports are loaded again and compared; a process without fedssl loads them, too."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from error_messages import raises

import fedssl
from fedssl import nets
from fedssl.core.errors import ConfigError, FedsslError
from fedssl.downstream.backbone import load_backbone
from fedssl.downstream.classify.classifier import Classifier
from fedssl.downstream.export import export, target, to_torch
from fedssl.probes.linear import Layer

MEAN = json.dumps([0.4])
STD = json.dumps([0.25])
# Run by an interpreter in which fedssl cannot be imported: the features of the pixels in
# pixels.npy.
WITHOUT_FEDSSL = """
import sys
sys.modules["fedssl"] = None
import numpy as np
pixels = np.load("pixels.npy")
exec(sys.stdin.read())
np.save("features.npy", features)
"""
WITH_TORCH = """
import torch
model = torch.export.load("model.pt2").module()
features = model(torch.from_numpy(pixels)).detach().numpy()
"""
WITH_ONNXRUNTIME = """
import onnxruntime
session = onnxruntime.InferenceSession("model.onnx")
[features] = session.run(None, {"pixels": pixels})
"""


@pytest.fixture
def backbone_file(write_backbone) -> Path:
    path: Path = write_backbone(name="cnn", image=(1, 12, 12), mean=MEAN, std=STD, model="north")
    return path


def _compute_elsewhere(folder: Path, code: str, pixels: torch.Tensor) -> torch.Tensor:
    """Return the outputs that another process computes without fedssl, warnings being errors."""
    np.save(folder / "pixels.npy", pixels.numpy())
    command = [sys.executable, "-W", "error", "-c", WITHOUT_FEDSSL]
    subprocess.run(command, input=code, cwd=folder, text=True, check=True, capture_output=True)
    return torch.from_numpy(np.load(folder / "features.npy"))


def _pixels(n: int) -> torch.Tensor:
    stream = torch.Generator().manual_seed(0)
    return torch.randint(256, (n, 1, 12, 12), dtype=torch.uint8, generator=stream)


def test_torch_loads_a_program_where_fedssl_cannot_be_imported(
    backbone_file: Path, tmp_path: Path
) -> None:
    """Pixels are normalised by the file; five images although it was traced with two."""
    done = export(backbone_file, "torch", tmp_path / "model.pt2")
    features = _compute_elsewhere(tmp_path, WITH_TORCH, _pixels(5))
    expected = load_backbone(backbone_file).features(_pixels(5))
    torch.testing.assert_close(features, expected, rtol=0, atol=1e-6)
    assert done.comparison.difference <= 1e-6
    assert done.comparison.images == 8


@pytest.mark.oracle
@pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime") is None, reason="needs onnx and onnxruntime"
)
def test_onnxruntime_loads_a_model_where_fedssl_cannot_be_imported(
    backbone_file: Path, tmp_path: Path
) -> None:
    import onnx

    export(backbone_file, "onnx", tmp_path / "model.onnx")
    features = _compute_elsewhere(tmp_path, WITH_ONNXRUNTIME, _pixels(5))
    expected = load_backbone(backbone_file).features(_pixels(5))
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5)
    properties = {
        entry.key: entry.value for entry in onnx.load(tmp_path / "model.onnx").metadata_props
    }
    assert (properties["backbone"], properties["mean"]) == ("cnn", MEAN)
    assert "model" not in properties


def test_a_program_holds_metadata_and_no_pickle(backbone_file: Path, tmp_path: Path) -> None:
    export(backbone_file, "torch", tmp_path / "model.pt2")
    with zipfile.ZipFile(tmp_path / "model.pt2") as archive:
        names = archive.namelist()
        [about] = [name for name in names if name.endswith(to_torch.METADATA)]
        metadata = json.loads(archive.read(about))
        [inputs] = [name for name in names if "sample_inputs" in name]
        assert archive.read(inputs) == b""
    assert metadata["mean"] == MEAN
    assert "model" not in metadata


@pytest.mark.parametrize("to", ["torch", pytest.param("onnx", marks=pytest.mark.oracle)])
def test_files_with_a_graph_hold_no_path(backbone_file: Path, tmp_path: Path, to: str) -> None:
    """Neither of the code, in stack traces, nor of the backbone."""
    path = tmp_path / {"torch": "model.pt2", "onnx": "model.onnx"}[to]
    export(backbone_file, to, path)
    content = path.read_bytes()
    if to == "torch":
        with zipfile.ZipFile(path) as archive:
            content = b"".join(map(archive.read, archive.namelist()))
    for private in (tmp_path, Path(fedssl.__file__).parent, Path(torch.__file__).parent):
        assert str(private).encode() not in content


def test_a_program_with_a_pickled_part_is_rejected(tmp_path: Path) -> None:
    """As torch writes it with example inputs, or with tensors of a subclass."""
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(1, 2),))
    torch.export.save(program, tmp_path / "inputs.pt2")
    with pytest.raises(FedsslError, match="pickles a part of the program"):
        to_torch.check_no_pickle(tmp_path / "inputs.pt2")
    config = {"config": {"weight": {"use_pickle": True}}}
    with zipfile.ZipFile(tmp_path / "weights.pt2", "w") as archive:
        archive.writestr("model/data/weights/model_weights_config.json", json.dumps(config))
    with pytest.raises(FedsslError, match="pickles a part of the program"):
        to_torch.check_no_pickle(tmp_path / "weights.pt2")


def test_a_program_can_take_normalised_images(backbone_file: Path, tmp_path: Path) -> None:
    export(backbone_file, "torch", tmp_path / "model.pt2", normalise=False)
    program = torch.export.load(tmp_path / "model.pt2").module()
    backbone = load_backbone(backbone_file)
    images = backbone.preprocess(_pixels(3))
    with torch.no_grad():
        assert torch.equal(program(images), backbone(images))


def test_a_classifier_returns_probabilities(write_backbone, tmp_path: Path) -> None:
    """A white image has the logits (3, 0): the probability of the first is 1 / (1 + e⁻³)."""
    weight = torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
    layer = Layer(weight, torch.zeros(2))
    classifier = Classifier(load_backbone(write_backbone()), layer, ("white", "black"), {})
    classifier.save(tmp_path / "model.safetensors")
    export(tmp_path / "model.safetensors", "torch", tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    white = torch.full((1, 3, 4, 4), 255, dtype=torch.uint8)
    assert program(white)[0].tolist() == pytest.approx([0.95257, 0.04743], abs=1e-5)
    with raises(ConfigError):
        export(tmp_path / "model.safetensors", "timm", tmp_path / "model")


def test_a_wrong_result_is_not_written(
    backbone_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exported program does not divide by the standard deviation."""
    right = target.Deployed.forward

    def wrong(self: target.Deployed, images: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_exporting():
            return right(self, images) * 1.001
        return right(self, images)

    monkeypatch.setattr(target.Deployed, "forward", wrong)
    with pytest.raises(FedsslError, match="differ from fedssl's by up to"):
        export(backbone_file, "torch", tmp_path / "model.pt2")
    assert [path.name for path in tmp_path.iterdir()] == ["backbone.safetensors"]


class Untraceable(nets.Backbone):
    """Its result depends on the value of a tensor in Python."""

    def __init__(self, channels: int = 3, stem: nets.Stem = "cifar") -> None:
        super().__init__()
        self.dim = 1
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        sign = 1.0 if float(images.sum()) > 0 else -1.0
        return sign * images.mean((1, 2, 3))[:, None] * self.weight


def test_a_network_that_torch_cannot_trace(
    write_backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(nets.BACKBONES._classes, "untraceable", Untraceable)
    file = write_backbone(name="untraceable")
    with pytest.raises(ConfigError, match="torch cannot trace the backbone untraceable"):
        export(file, "torch", tmp_path / "model.pt2")
    assert export(file, "hub", tmp_path / "hub").comparison.difference == 0


def test_an_existing_export_is_kept_unless_forced(backbone_file: Path, tmp_path: Path) -> None:
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub/notes").touch()
    with raises(ConfigError):
        export(backbone_file, "hub", tmp_path / "hub")
    export(backbone_file, "hub", tmp_path / "hub", force=True)
    assert (tmp_path / "hub/notes").exists()  # only files of the export are replaced
    assert load_backbone(tmp_path / "hub").name == "cnn"
    (tmp_path / "folder.pt2").mkdir()
    with raises(ConfigError):
        export(backbone_file, "torch", tmp_path / "folder.pt2", force=True)
    with raises(ConfigError):
        export(backbone_file, "torch", tmp_path / "model.onnx")
    with raises(ConfigError):
        export(backbone_file, "torch", tmp_path / "missing" / "model.pt2")
    with raises(ConfigError):
        export(backbone_file, "tensorflow")


def test_networks_that_a_library_does_not_have(backbone_file: Path, tmp_path: Path) -> None:
    for to, name in (("torchvision", "a.safetensors"), ("timm", "b")):
        with raises(ConfigError):
            export(backbone_file, to, tmp_path / name)


def test_a_hub_folder_is_loaded_by_its_path(backbone_file: Path, tmp_path: Path) -> None:
    done = export(backbone_file, "hub", tmp_path / "hub")
    loaded = fedssl.load_backbone(tmp_path / "hub")
    original = load_backbone(backbone_file)
    assert done.comparison.difference == 0
    assert torch.equal(loaded.features(_pixels(2)), original.features(_pixels(2)))
    assert loaded.preprocess == original.preprocess
    config = json.loads((tmp_path / "hub/config.json").read_text())
    prepared = json.loads((tmp_path / "hub/preprocessor_config.json").read_text())
    assert (config["backbone"], config["hidden_size"]) == ("cnn", 512)
    assert (prepared["image_mean"], prepared["size"]) == ([0.4], {"height": 12, "width": 12})
    for file in (tmp_path / "hub").iterdir():
        content = file.read_bytes()
        assert b"north" not in content
        assert str(tmp_path).encode() not in content
