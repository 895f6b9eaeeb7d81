"""torchvision's Mask R-CNN with a feature pyramid on a fedssl backbone.

He, Gkioxari, Dollár, Girshick, "Mask R-CNN", ICCV 2017; Lin et al., "Feature Pyramid Networks", CVPR 2017.

The cells of the pyramid's first level are as large as the stem makes them: four pixels with the ImageNet stem, one with
the CIFAR stem. Anchors go with them, eight cells wide at every level (32 to 512 pixels, or 8 to 128), and so does the
size that images are scaled to: a CIFAR stem meets images a quarter as large (shorter side 200 in place of 800). Cells
per object, the level an object is looked for at and the cost of a step are then the same with either stem; what the
CIFAR stem loses is detail finer than four pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from fedssl.errors import ConfigError
from fedssl.finetune.settings import DetectionSettings
from fedssl.finetune.start import Start
from fedssl.seeds import derive

CELL = {"imagenet": 4, "cifar": 1}  # pixels of an image to a cell of the first level
SHORTER, LONGER = 200, 333.25  # of an image, in cells of the first level: 800 and 1,333 pixels with the ImageNet stem
STAGES = (("conv1", "bn1"), ("layer1",), ("layer2",), ("layer3",), ("layer4",))
NEEDED = ("torchvision", "pycocotools")


def check_installed() -> None:
    """Refuse to begin without what the end needs, too."""
    for name in NEEDED:
        try:
            __import__(name)
        except ModuleNotFoundError:
            raise ConfigError(f'detection needs {name}: in a clone of fedssl, pip install ".[vision]"') from None
        except RuntimeError as problem:
            raise ConfigError(f"{name} is installed but cannot be imported ({problem}); see fedssl doctor") from None


def check(settings: DetectionSettings) -> None:
    """What contradicts itself."""
    if settings.start == "random" and (settings.norm == "frozen" or settings.freeze):
        raise ConfigError(
            "an untrained backbone has nothing to freeze, no weights and no statistics: --from random goes with "
            "norm = train and freeze = 0"
        )


def sizes(settings: DetectionSettings, stem: str) -> tuple[int, int]:
    """Of the shorter side of an image, and the most of the longer, in pixels."""
    shorter = settings.size or SHORTER * CELL[stem]
    longest = settings.longest or int(shorter * LONGER / SHORTER)
    if longest < shorter:
        raise ConfigError(f"longest = {longest} is less than size = {shorter}, the shorter side of an image")
    return shorter, longest


def build(start: Start, settings: DetectionSettings, classes: int) -> nn.Module:
    """Mask R-CNN on a backbone with the given weights; the rest is drawn from the seed."""
    from torchvision.models.detection import MaskRCNN
    from torchvision.models.detection.backbone_utils import BackboneWithFPN

    check(settings)
    shorter, longest = sizes(settings, start.stem)
    weights = start.untrained(settings.seed).weights if settings.start == "random" else start.weights
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(settings.seed, "detector"))
        body = _body(start, settings, weights)
        channels = [_outputs(getattr(body, f"layer{i}")) for i in range(1, 5)]
        levels = {f"layer{i + 1}": str(i) for i in range(4)}
        model: nn.Module = MaskRCNN(
            BackboneWithFPN(body, levels, channels, settings.width),
            min_size=shorter,
            max_size=longest,
            image_mean=list(start.mean),
            image_std=list(start.std),
            box_batch_size_per_image=settings.regions,
            **_heads(settings.width, classes + 1),
            **_proposals(settings.width, CELL[start.stem]),
        )
    for module in frozen(model, settings.freeze):
        module.requires_grad_(False)
    return model


def frozen(model: nn.Module, stages: int) -> Iterator[nn.Module]:
    """The first stages of the backbone, the stem counted as one."""
    body: Any = model.get_submodule("backbone.body")
    for names in STAGES[:stages]:
        yield from (body[name] for name in names)


def training_mode(model: nn.Module, settings: DetectionSettings) -> None:
    """Frozen stages keep the statistics of their norm layers, too."""
    model.train()
    for module in frozen(model, settings.freeze):
        module.eval()


def _body(start: Start, settings: DetectionSettings, weights: dict[str, Any]) -> nn.Module:
    """torchvision's ResNet with the exported weights and no classifier."""
    from torchvision import models
    from torchvision.ops import FrozenBatchNorm2d

    norm = FrozenBatchNorm2d if settings.norm == "frozen" else nn.BatchNorm2d
    body: nn.Module = getattr(models, start.backbone)(weights=None, norm_layer=norm)
    body.fc = nn.Identity()
    if start.stem == "cifar":
        body.conv1 = nn.Conv2d(start.channels, 64, 3, padding=1, bias=False)
        body.maxpool = nn.Identity()
    elif start.channels != 3:
        body.conv1 = nn.Conv2d(start.channels, 64, 7, 2, 3, bias=False)
    try:
        body.load_state_dict(weights, strict=True)
    except RuntimeError as problem:
        raise ConfigError(f"{start.file} does not fit the {start.backbone} it says it is: {problem}") from None
    return body


def _outputs(stage: Any) -> int:
    """Channels of a stage's result."""
    convolutions = [module for module in stage[-1].children() if isinstance(module, nn.Conv2d)]
    return convolutions[-1].out_channels


def _heads(width: int, classes: int) -> dict[str, nn.Module]:
    """The usual two layers for boxes and five for masks, at any width; 256 is the paper's."""
    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
    from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor

    return {
        "box_head": TwoMLPHead(width * 7 * 7, 4 * width),
        "box_predictor": FastRCNNPredictor(4 * width, classes),
        "mask_head": MaskRCNNHeads(width, (width,) * 4, 1),
        "mask_predictor": MaskRCNNPredictor(width, width, classes),
    }


def _proposals(width: int, cell: int) -> dict[str, nn.Module]:
    """Three anchors of eight cells at each of the five levels."""
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.rpn import RPNHead

    anchors = AnchorGenerator(tuple((8 * cell * 2**level,) for level in range(5)), ((0.5, 1.0, 2.0),) * 5)
    return {"rpn_anchor_generator": anchors, "rpn_head": RPNHead(width, 3)}
