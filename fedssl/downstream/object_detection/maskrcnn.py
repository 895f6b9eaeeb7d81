"""torchvision's Mask R-CNN with a feature pyramid on a fedssl backbone.

He, Gkioxari, Dollár, Girshick, "Mask R-CNN", ICCV 2017; Lin et al., "Feature Pyramid Networks",
CVPR 2017.

The stem determines the size of the cells of the pyramid's first level: four pixels with the
ImageNet stem, one with the CIFAR stem. Anchors are eight cells wide at every level (32 to 512
pixels, or 8 to 128), and images are scaled in proportion: with a CIFAR stem they are a quarter as
large (shorter side 200 instead of 800). Cells per object, the level of an object and the cost of a
step are then the same with either stem; the CIFAR stem loses detail finer than four pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from fedssl.core.errors import ConfigError
from fedssl.core.seeds import derive
from fedssl.downstream.object_detection.backbone_file import ExportedBackbone
from fedssl.downstream.object_detection.settings import DetectionSettings

CELL = {"imagenet": 4, "cifar": 1}  # pixels of an image per cell of the first level
# Sides of an image in cells of the first level: 800 and 1,333 pixels with the ImageNet stem.
SHORTER_SIDE = 200
LONGER_SIDE = 333.25
STAGES = (("conv1", "bn1"), ("layer1",), ("layer2",), ("layer3",), ("layer4",))
REQUIRED_PACKAGES = ("torchvision", "pycocotools")


def check_installed() -> None:
    """Raise a ConfigError if a package is missing, including those for the evaluation."""
    for name in REQUIRED_PACKAGES:
        try:
            __import__(name)
        except ModuleNotFoundError:
            raise ConfigError(
                f'detection needs {name}: in a clone of fedssl, pip install ".[vision]"'
            ) from None
        except RuntimeError as error:
            raise ConfigError(
                f"{name} is installed but cannot be imported ({error}); see fedssl doctor"
            ) from None


def check_settings(settings: DetectionSettings) -> None:
    """Raise a ConfigError if settings contradict each other."""
    if settings.start == "random" and (settings.norm == "frozen" or settings.freeze):
        raise ConfigError(
            "--from random cannot be combined with frozen layers, because they would never be "
            "trained: set norm=train and freeze=0"
        )


def image_sizes(settings: DetectionSettings, stem: str) -> tuple[int, int]:
    """Return the shorter side of an image and the limit of the longer side, in pixels."""
    shorter = settings.size or SHORTER_SIDE * CELL[stem]
    longest = settings.longest or int(shorter * LONGER_SIDE / SHORTER_SIDE)
    if longest < shorter:
        raise ConfigError(
            f"longest = {longest} is less than size = {shorter}, the shorter side of an image"
        )
    return shorter, longest


def build_detector(
    backbone: ExportedBackbone, settings: DetectionSettings, classes: int
) -> nn.Module:
    """Return Mask R-CNN on a backbone; all other weights are drawn from the seed."""
    from torchvision.models.detection import MaskRCNN
    from torchvision.models.detection.backbone_utils import BackboneWithFPN

    check_settings(settings)
    shorter, longest = image_sizes(settings, backbone.stem)
    if settings.start == "random":
        backbone = backbone.untrained(settings.seed)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(settings.seed, "detector"))
        body = _body(backbone, settings)
        channels = []
        levels = {}
        for level, (stage,) in enumerate(STAGES[1:]):
            channels.append(_output_channels(getattr(body, stage)))
            levels[stage] = str(level)
        model: nn.Module = MaskRCNN(
            BackboneWithFPN(body, levels, channels, settings.width),
            min_size=shorter,
            max_size=longest,
            image_mean=list(backbone.mean),
            image_std=list(backbone.std),
            box_batch_size_per_image=settings.regions,
            **_heads(settings.width, classes + 1),
            **_proposals(settings.width, CELL[backbone.stem]),
        )
    for module in frozen_modules(model, settings.freeze):
        module.requires_grad_(False)
    return model


def frozen_modules(model: nn.Module, stages: int) -> Iterator[nn.Module]:
    """Yield the modules of the first stages of the backbone; the stem counts as a stage."""
    body: Any = model.get_submodule("backbone.body")
    for names in STAGES[:stages]:
        for name in names:
            yield body[name]


def set_training_mode(model: nn.Module, settings: DetectionSettings) -> None:
    """Set training mode, except in frozen stages: their norm layers keep their statistics."""
    model.train()
    for module in frozen_modules(model, settings.freeze):
        module.eval()


def _body(backbone: ExportedBackbone, settings: DetectionSettings) -> nn.Module:
    """Return torchvision's ResNet with the exported weights and without classifier."""
    from torchvision import models
    from torchvision.ops import FrozenBatchNorm2d

    norm: type[nn.Module] = nn.BatchNorm2d
    if settings.norm == "frozen":
        norm = FrozenBatchNorm2d
    body: nn.Module = getattr(models, backbone.backbone)(weights=None, norm_layer=norm)
    body.fc = nn.Identity()
    if backbone.stem == "cifar":
        body.conv1 = nn.Conv2d(backbone.channels, 64, 3, padding=1, bias=False)
        body.maxpool = nn.Identity()
    elif backbone.channels != 3:
        body.conv1 = nn.Conv2d(backbone.channels, 64, 7, stride=2, padding=3, bias=False)
    try:
        body.load_state_dict(backbone.weights, strict=True)
    except RuntimeError as error:
        raise ConfigError(
            f"{backbone.file} does not fit the {backbone.backbone} of its header: {error}"
        ) from None
    return body


def _output_channels(stage: Any) -> int:
    """Return the number of channels of a stage's output."""
    convolutions = [module for module in stage[-1].children() if isinstance(module, nn.Conv2d)]
    return convolutions[-1].out_channels


def _heads(width: int, classes: int) -> dict[str, nn.Module]:
    """Return the paper's two layers for boxes and five for masks; its width is 256."""
    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
    from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor

    return {
        "box_head": TwoMLPHead(width * 7 * 7, 4 * width),
        "box_predictor": FastRCNNPredictor(4 * width, classes),
        "mask_head": MaskRCNNHeads(width, (width,) * 4, 1),
        "mask_predictor": MaskRCNNPredictor(width, width, classes),
    }


def _proposals(width: int, cell: int) -> dict[str, nn.Module]:
    """Return the RPN's head and its three anchors of eight cells at each of the five levels."""
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.rpn import RPNHead

    sizes = tuple((8 * cell * 2**level,) for level in range(5))
    anchors = AnchorGenerator(sizes, aspect_ratios=((0.5, 1.0, 2.0),) * 5)
    return {"rpn_anchor_generator": anchors, "rpn_head": RPNHead(width, 3)}
