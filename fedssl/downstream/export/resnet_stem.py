"""How fedssl's ResNets differ from torchvision's and timm's: in the stem and the input channels."""

from __future__ import annotations

from typing import Any

from torch import nn

from fedssl.downstream.backbone import TrainedBackbone
from fedssl.nets.resnet import ResNet

RESNETS = ("resnet18", "resnet34", "resnet50")  # names that torchvision and timm have, too


def is_resnet(backbone: TrainedBackbone) -> bool:
    """True for a ResNet of fedssl, whose parameters have torchvision's and timm's names."""
    return backbone.name in RESNETS and isinstance(backbone.network, ResNet)


def stem_lines(backbone: TrainedBackbone, *, sets_channels: bool) -> list[str]:
    """Return the lines of Python that give `model` the stem of a backbone.

    `sets_channels`: the library builds the first convolution for the channels of the images.
    """
    conv = _network(backbone).conv1
    outputs = conv.out_channels
    if backbone.stem == "cifar":
        return [
            f"model.conv1 = torch.nn.Conv2d({backbone.channels}, {outputs}, kernel_size=3, "
            "stride=1, padding=1, bias=False)",
            "model.maxpool = torch.nn.Identity()",
        ]
    if backbone.channels != 3 and not sets_channels:
        return [
            f"model.conv1 = torch.nn.Conv2d({backbone.channels}, {outputs}, kernel_size=7, "
            "stride=2, padding=3, bias=False)"
        ]
    return []


def set_stem(model: Any, backbone: TrainedBackbone, *, sets_channels: bool) -> None:
    """Do what the lines of `stem_lines` do."""
    outputs = _network(backbone).conv1.out_channels
    if backbone.stem == "cifar":
        model.conv1 = nn.Conv2d(backbone.channels, outputs, 3, padding=1, bias=False)
        model.maxpool = nn.Identity()
    elif backbone.channels != 3 and not sets_channels:
        model.conv1 = nn.Conv2d(backbone.channels, outputs, 7, stride=2, padding=3, bias=False)


def _network(backbone: TrainedBackbone) -> ResNet:
    assert isinstance(backbone.network, ResNet)
    return backbone.network
