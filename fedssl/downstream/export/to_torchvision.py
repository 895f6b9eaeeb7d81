"""Export a ResNet as weights with torchvision's names.

With the ImageNet stem, a file loads into torchvision's model as it is. The CIFAR stem is a 3x3
convolution of stride 1 without max-pooling, which torchvision does not have: two lines replace the
first layers of its model, and the same file loads.
"""

from __future__ import annotations

from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from fedssl import nets
from fedssl.core.errors import ConfigError
from fedssl.downstream.export.resnet_stem import is_resnet, set_stem, stem_lines
from fedssl.downstream.export.target import Comparison, Target, compare
from fedssl.downstream.packages import need_packages
from fedssl.nets.group_norm import group_count
from fedssl.nets.vit import ViT


def write(target: Target) -> Comparison:
    """Write the weights, load them into torchvision's model and compare its features."""
    backbone = target.backbone
    if not is_resnet(backbone):
        others = "torch, onnx or hub"
        if isinstance(backbone.network, ViT) or backbone.name.startswith("timm:"):
            others = f"timm, {others}"
        raise ConfigError(
            f'torchvision has no network with the parameters of "{backbone.name}": only ResNets '
            f"of fedssl can be exported to it; use --to {others}"
        )
    need_packages(("torchvision",), "vision")
    header = {**target.header, "load": lines(target, target.final.name)}
    nets.save_backbone(backbone.network.state_dict(), target.path, header)
    model = build(target)
    model.load_state_dict(load_file(target.path), strict=True)
    return compare(target, model.eval(), prepared=True)


def build(target: Target) -> Any:
    """Return torchvision's model as the lines build it, with random weights."""
    import torchvision

    backbone = target.backbone
    options = {}
    if backbone.norm == "group":
        options["norm_layer"] = lambda channels: nn.GroupNorm(group_count(channels), channels)
    with torch.random.fork_rng(devices=[]):
        model = getattr(torchvision.models, backbone.name)(**options)
        set_stem(model, backbone, sets_channels=False)
    model.fc = nn.Identity()
    return model


def lines(target: Target, place: str) -> str:
    """Return the lines of Python that load the file at a place."""
    backbone = target.backbone
    options = ""
    if backbone.norm == "group":
        options = "norm_layer=lambda channels: torch.nn.GroupNorm(channels // 16, channels)"
    parts = [
        "import torch",
        "import torchvision",
        "from safetensors.torch import load_file",
        "",
        f"model = torchvision.models.{backbone.name}({options})",
        *stem_lines(backbone, sets_channels=False),
        "model.fc = torch.nn.Identity()",
        f"model.load_state_dict(load_file({place!r}), strict=True)",
        "model.eval()",
    ]
    return "\n".join(parts) + "\n"
