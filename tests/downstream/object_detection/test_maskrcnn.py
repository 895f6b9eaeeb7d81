"""The detector's backbone, stems, frozen stages and anchors, on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from shapes import parts
from torch import Tensor

from fedssl import nets
from fedssl.downstream.object_detection import maskrcnn
from fedssl.downstream.object_detection.backbone_file import read_backbone
from fedssl.downstream.object_detection.finetune import fine_tune
from fedssl.downstream.object_detection.settings import DetectionSettings

pytestmark = [pytest.mark.slow]
pytest.importorskip("pycocotools")

Tiny = Callable[..., DetectionSettings]
Make = Callable[..., Path]


@pytest.fixture(autouse=True)
def _torchvision() -> None:
    pytest.importorskip("torchvision")


def backbone_of(folder: Path | str) -> dict[str, Tensor]:
    prefix = "backbone.body."
    tensors = load_file(Path(folder) / "model.safetensors")
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    """Names of the tensors that differ, but for counters."""
    return {
        name
        for name in after
        if "num_batches" not in name and not torch.equal(before[name], after[name])
    }


def test_the_whole_model_moves(export: Make, shapes_of: Make, tiny: Tiny) -> None:
    """Every weight of the backbone, and every statistic of its norm layers."""
    start = load_file(export())
    after = backbone_of(
        fine_tune(export(), *parts(shapes_of()), tiny(), device="cpu", quiet=True)["dir"]
    )
    assert after.keys() == start.keys()
    assert moved(start, after) == {name for name in start if "num_batches" not in name}


def test_what_is_frozen_does_not_move(export: Make, shapes_of: Make, tiny: Tiny) -> None:
    """freeze = 5 is all of the backbone, statistics included; 2 the stem and the first stage; norm
    = frozen only the norm layers. Heads are trained in all cases.
    """
    train, val = parts(shapes_of())
    start = load_file(export())
    all_names = {name for name in start if "num_batches" not in name}
    norms = {name for name in all_names if ".bn" in f".{name}" or "downsample.1" in name}
    early = {name for name in all_names if name.startswith(("conv1.", "bn1.", "layer1."))}
    for change, still in (
        ({"freeze": 5}, all_names),
        ({"freeze": 2}, early),
        ({"norm": "frozen"}, norms),
    ):
        done = fine_tune(export(), train, val, tiny(**change), device="cpu", quiet=True)
        assert moved(start, backbone_of(done["dir"])) == all_names - still, change
        after = load_file(Path(done["dir"]) / "model.safetensors")
        fresh = maskrcnn.build_detector(read_backbone(export()), tiny(**change), 3).state_dict()
        assert moved(fresh, after) >= {
            "rpn.head.cls_logits.weight",
            "roi_heads.mask_predictor.conv5_mask.weight",
        }


def test_the_backbone_is_the_exported_one(export: Make, tiny: Tiny) -> None:
    """The mean of the last map equals fedssl's backbone; mean and std are those of its header."""
    for stem in ("imagenet", "cifar"):
        file = export(stem, mean=[0.1, 0.2, 0.3], std=[0.4, 0.5, 0.6])
        model: Any = maskrcnn.build_detector(read_backbone(file), tiny(), 3).eval()
        own = nets.build("resnet18", 3, stem).eval()
        own.load_state_dict(load_file(file))
        images = torch.rand(2, 3, 64, 64)
        with torch.no_grad():
            torch.testing.assert_close(model.backbone.body(images)["3"].mean((2, 3)), own(images))
            transformed = model.transform([images[0]])[0].tensors[0]
        mean = torch.tensor([0.1, 0.2, 0.3])[:, None, None]
        std = torch.tensor([0.4, 0.5, 0.6])[:, None, None]
        torch.testing.assert_close(transformed, (images[0] - mean) / std)


@pytest.mark.parametrize(("stem", "first"), [("imagenet", 4), ("cifar", 1)])
def test_anchors_go_with_the_cells(export: Make, tiny: Tiny, stem: str, first: int) -> None:
    """They are eight cells wide at every level: 32 to 512 pixels with cells of 4, or 8 to 128."""
    model: Any = maskrcnn.build_detector(read_backbone(export(stem)), tiny(), 3).eval()
    with torch.no_grad():
        maps = model.backbone(torch.rand(1, 3, 64, 64))
    cells = [64 / m.shape[-1] for m in maps.values()]
    assert cells == [first * 2**level for level in range(5)]
    assert [size for (size,) in model.rpn.anchor_generator.sizes] == [8 * cell for cell in cells]


def test_other_stems_channels_and_starts(export: Make, shapes_of: Make, tiny: Tiny) -> None:
    """A grey backbone gets images of one channel; start = "random" draws weights from the seed."""
    train, val = parts(shapes_of(4, 32))
    for stem, channels in (("cifar", 1), ("imagenet", 1)):
        done = fine_tune(
            export(stem, channels),
            train,
            val,
            tiny(size=32, iterations=1),
            device="cpu",
            quiet=True,
        )
        assert backbone_of(done["dir"])["conv1.weight"].shape[1] == 1
    file = export("cifar")
    done = fine_tune(
        file, train, val, tiny(size=32, start="random", iterations=0), device="cpu", quiet=True
    )
    assert done["start"] == "random"
    found = backbone_of(done["dir"])
    assert torch.equal(
        found["conv1.weight"], read_backbone(file).untrained(0).weights["conv1.weight"]
    )
    assert not torch.equal(found["conv1.weight"], load_file(file)["conv1.weight"])
