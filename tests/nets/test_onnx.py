"""Every backbone can be exported with torch.onnx, and computes the same in onnxruntime."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fedssl import nets
from fedssl.nets import BACKBONES

SHAPES = ((1, 28, 28),)  # channels, height, width; not the 32 pixels of the position embeddings
HAS_RUNTIME = importlib.util.find_spec("onnxruntime") is not None
pytestmark = [
    pytest.mark.parametrize("shape", SHAPES),
    pytest.mark.parametrize("name", BACKBONES.names()),
]


@pytest.fixture(autouse=True)
def _expected_warnings() -> Iterator[None]:
    """Ignore that sizes become constants, and that torch prefers its new exporter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def _backbone(name: str, channels: int) -> nets.Backbone:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nets.build(name, channels).eval()


def _export(backbone: nets.Backbone, shape: tuple[int, int, int], file: Path) -> None:
    torch.onnx.export(
        backbone,
        (torch.rand(1, *shape),),
        str(file),
        dynamo=False,
        input_names=["images"],
        dynamic_axes={"images": {0: "n"}},
    )


def test_a_traced_backbone_computes_the_same_for_any_number_of_images(
    name: str, shape: tuple[int, int, int]
) -> None:
    """The exporter begins with a trace, here of one image."""
    backbone = _backbone(name, shape[0])
    images = torch.rand(3, *shape)
    traced = torch.jit.trace(backbone, torch.rand(1, *shape))
    assert torch.equal(traced(images), backbone(images))


def test_every_operation_is_converted(
    name: str, shape: tuple[int, int, int], tmp_path: Path
) -> None:
    """Without the package onnx, the exporter fails only in its last step."""
    backbone = _backbone(name, shape[0])
    if importlib.util.find_spec("onnx") is not None:
        _export(backbone, shape, tmp_path / "backbone.onnx")
        return
    with pytest.raises(torch.onnx.OnnxExporterError, match=r"^Module onnx is not installed!$"):
        _export(backbone, shape, tmp_path / "backbone.onnx")


@pytest.mark.skipif(not HAS_RUNTIME, reason="needs onnx and onnxruntime")
def test_onnxruntime_computes_the_same(
    name: str, shape: tuple[int, int, int], tmp_path: Path
) -> None:
    import onnxruntime

    backbone = _backbone(name, shape[0])
    images = torch.rand(3, *shape)
    file = tmp_path / "backbone.onnx"
    _export(backbone, shape, file)
    [features] = onnxruntime.InferenceSession(str(file)).run(None, {"images": images.numpy()})
    assert torch.allclose(torch.from_numpy(features), backbone(images), atol=1e-5)
