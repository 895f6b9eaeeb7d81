"""ResNet-18, -34 and -50 without their last layer.

He et al., "Deep Residual Learning for Image Recognition", CVPR 2016. Keys of the state_dict are torchvision's,
whose weights load as they are. The CIFAR stem is a 3x3 convolution of stride 1, no max-pooling.

The first weights depend on the stem. With the ImageNet stem they are torchvision's. With the CIFAR stem they are
torch's own for a convolution, 2.4 times smaller, as in the public code of FedU and FedEMA: their thresholds on
distances between models mean something on that scale only, and results/README.md has a run of each.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedssl.nets.backbone import BACKBONES, Backbone, Stem
from fedssl.nets.norm import BatchNorm2d


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)


class SmallStem(nn.Conv2d):
    """A 3x3 convolution of the images themselves; `fused`: with a kernel made for their few channels."""

    fused: bool = False

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3, padding=1, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        if self.fused and self.training:
            from fedssl.kernels.stem import stem, suits  # Triton is there only where CUDA is

            if suits(images, self.weight):
                return stem(images, self.weight)
        return super().forward(images)


class Basic(nn.Module):
    """Two 3x3 convolutions beside a shortcut: (n, inputs, h, w) to (n, width, h/stride, w/stride).

    Takes the same images twice, for each of the two branches, and gives the next block the same: see `twice`.
    """

    expansion: ClassVar[int] = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(inputs, width, 3, stride), BatchNorm2d(width, relu=True)
        self.conv2, self.bn2 = _conv(width, width, 3), BatchNorm2d(width, relu=True)
        self.downsample = _shortcut(inputs, width, stride)

    def forward(self, x: Tensor, skip: Tensor) -> tuple[Tensor, Tensor]:
        y = self.conv2(self.bn1(self.conv1(x)))
        return self.bn2.twice(y, skip if self.downsample is None else self.downsample(skip))


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions beside a shortcut: (n, inputs, h, w) to (n, 4·width, h/stride, w/stride)."""

    expansion: ClassVar[int] = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = self.expansion * width
        self.conv1, self.bn1 = _conv(inputs, width, 1), BatchNorm2d(width, relu=True)
        self.conv2, self.bn2 = _conv(width, width, 3, stride), BatchNorm2d(width, relu=True)
        self.conv3, self.bn3 = _conv(width, outputs, 1), BatchNorm2d(outputs, relu=True)
        self.downsample = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor, skip: Tensor) -> tuple[Tensor, Tensor]:
        y = self.conv3(self.bn2(self.conv2(self.bn1(self.conv1(x)))))
        return self.bn3.twice(y, skip if self.downsample is None else self.downsample(skip))


class Stage(nn.Sequential):
    """Blocks at one resolution."""

    def forward(self, x: Tensor, skip: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        for block in self:
            x, skip = block(x, skip)
        return x, skip


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    """None where the block's input and output have one shape and can simply be added."""
    if inputs == outputs and stride == 1:
        return None
    return nn.Sequential(_conv(inputs, outputs, 1, stride), BatchNorm2d(outputs))


class ResNet(Backbone):
    """A stem, four stages, global average pooling: (n, channels, h, w) to (n, dim)."""

    block: ClassVar[type[Basic] | type[Bottleneck]]
    depths: ClassVar[tuple[int, int, int, int]]
    width: ClassVar[int] = 64  # of the first stage; each later one is twice as wide

    def __init__(self, channels: int = 3, stem: Stem = "cifar") -> None:
        super().__init__()
        self.pool = stem == "imagenet"
        self.conv1 = _conv(channels, self.width, 7, 2) if self.pool else SmallStem(channels, self.width)
        self.bn1 = BatchNorm2d(self.width, relu=True)
        self.dim = self.width
        self.layer1, self.layer2, self.layer3, self.layer4 = (self._stage(i) for i in range(4))
        for module in self.modules():
            if self.pool and isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def _stage(self, index: int) -> Stage:
        """The first block of a stage halves the resolution, but for that of the first stage."""
        width, blocks = self.width * 2**index, []
        for i in range(self.depths[index]):
            blocks.append(self.block(self.dim, width, 2 if index > 0 and i == 0 else 1))
            self.dim = width * self.block.expansion
        return Stage(*blocks)

    def forward(self, images: Tensor) -> Tensor:
        x, skip = self.bn1.twice(self.conv1(images))
        if self.pool:
            x = skip = F.max_pool2d(x, 3, 2, 1)
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x, skip = stage(x, skip)
        return torch.mean(x, (2, 3))


@BACKBONES.register("resnet18")
class ResNet18(ResNet):
    block, depths = Basic, (2, 2, 2, 2)


@BACKBONES.register("resnet34")
class ResNet34(ResNet):
    block, depths = Basic, (3, 4, 6, 3)


@BACKBONES.register("resnet50")
class ResNet50(ResNet):
    block, depths = Bottleneck, (3, 4, 6, 3)
