"""ResNet-18, -34 and -50 without their last layer.

He et al., "Deep Residual Learning for Image Recognition", CVPR 2016. Keys of the state_dict are
torchvision's, whose weights load unchanged. The CIFAR stem is a 3x3 convolution of stride 1, no
max-pooling.

The initial weights depend on the stem. With the ImageNet stem they are torchvision's. With the
CIFAR stem they are torch's default for a convolution, 2.4 times smaller, as in the public code of
FedU and FedEMA: their thresholds on distances between models are meaningful only on that scale, and
results/README.md has a run of each.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedssl.nets.backbone import BACKBONES, Backbone, Stem
from fedssl.nets.norm import BatchNorm2d


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """Return a convolution without bias that keeps the resolution at stride 1."""
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


class SmallStem(nn.Conv2d):
    """3x3 convolution of the images; if `fused`, with a kernel for inputs of few channels."""

    fused: bool = False

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3, padding=1, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return the convolution of images (n, inputs, h, w): (n, outputs, h, w)."""
        if self.fused and self.training:
            from fedssl.core.kernels.stem import stem, suits  # Triton is installed only with CUDA

            if suits(images, self.weight):
                return stem(images, self.weight)
        return super().forward(images)


class Basic(nn.Module):
    """Two 3x3 convolutions and a shortcut: (n, inputs, h, w) to (n, width, h/stride, w/stride).

    The input is passed twice, once for each of the two branches, and so is the output: see `twice`.
    """

    expansion: ClassVar[int] = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, width, 3, stride=stride)
        self.bn1 = BatchNorm2d(width, relu=True)
        self.conv2 = _conv(width, width, 3)
        self.bn2 = BatchNorm2d(width, relu=True)
        self.downsample = _shortcut(inputs, width, stride)

    def forward(self, x: Tensor, skip: Tensor) -> tuple[Tensor, Tensor]:
        """Return the block's output for the next block's two branches."""
        y = self.conv2(self.bn1(self.conv1(x)))
        if self.downsample is not None:
            skip = self.downsample(skip)
        return self.bn2.twice(y, skip)


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions and a shortcut.

    Shapes: (n, inputs, h, w) to (n, 4·width, h/stride, w/stride).
    """

    expansion: ClassVar[int] = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = self.expansion * width
        self.conv1 = _conv(inputs, width, 1)
        self.bn1 = BatchNorm2d(width, relu=True)
        self.conv2 = _conv(width, width, 3, stride=stride)
        self.bn2 = BatchNorm2d(width, relu=True)
        self.conv3 = _conv(width, outputs, 1)
        self.bn3 = BatchNorm2d(outputs, relu=True)
        self.downsample = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor, skip: Tensor) -> tuple[Tensor, Tensor]:
        """Return the block's output for the next block's two branches."""
        y = self.conv3(self.bn2(self.conv2(self.bn1(self.conv1(x)))))
        if self.downsample is not None:
            skip = self.downsample(skip)
        return self.bn3.twice(y, skip)


class Stage(nn.Sequential):
    """Blocks at one resolution."""

    def forward(self, x: Tensor, skip: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Return the output of the last block for the next stage's two branches."""
        for block in self:
            x, skip = block(x, skip)
        return x, skip


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    """Return a projection, or None if the block's input and output have the same shape."""
    if inputs == outputs and stride == 1:
        return None
    return nn.Sequential(_conv(inputs, outputs, 1, stride=stride), BatchNorm2d(outputs))


class ResNet(Backbone):
    """A stem, four stages, global average pooling: (n, channels, h, w) to (n, dim)."""

    block: ClassVar[type[Basic] | type[Bottleneck]]
    depths: ClassVar[tuple[int, int, int, int]]
    width: ClassVar[int] = 64  # of the first stage; each later one is twice as wide

    def __init__(self, channels: int = 3, stem: Stem = "cifar") -> None:
        super().__init__()
        self.pool = stem == "imagenet"
        self.conv1: nn.Conv2d
        if self.pool:
            self.conv1 = _conv(channels, self.width, 7, stride=2)
        else:
            self.conv1 = SmallStem(channels, self.width)
        self.bn1 = BatchNorm2d(self.width, relu=True)
        self.dim = self.width  # of the last block built; grows with the stages
        self.layer1 = self._build_stage(0)
        self.layer2 = self._build_stage(1)
        self.layer3 = self._build_stage(2)
        self.layer4 = self._build_stage(3)
        if self.pool:
            self._init_as_torchvision()

    def _build_stage(self, index: int) -> Stage:
        """Return a stage; its first block halves the resolution, except in the first stage."""
        width = self.width * 2**index
        blocks = []
        for i in range(self.depths[index]):
            stride = 2 if index > 0 and i == 0 else 1
            blocks.append(self.block(self.dim, width, stride))
            self.dim = width * self.block.expansion
        return Stage(*blocks)

    def _init_as_torchvision(self) -> None:
        """Draw the weights of all convolutions as torchvision does."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Return the features (n, dim)."""
        x, skip = self.bn1.twice(self.conv1(images))
        if self.pool:
            x = F.max_pool2d(x, 3, stride=2, padding=1)
            skip = x
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x, skip = stage(x, skip)
        return torch.mean(x, (2, 3))


@BACKBONES.register("resnet18")
class ResNet18(ResNet):
    """ResNet-18 without its last layer."""

    block = Basic
    depths = (2, 2, 2, 2)


@BACKBONES.register("resnet34")
class ResNet34(ResNet):
    """ResNet-34 without its last layer."""

    block = Basic
    depths = (3, 4, 6, 3)


@BACKBONES.register("resnet50")
class ResNet50(ResNet):
    """ResNet-50 without its last layer."""

    block = Bottleneck
    depths = (3, 4, 6, 3)
