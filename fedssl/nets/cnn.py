"""Two plain convolutional networks: FedCA's, and a small fast one for small images on a CPU."""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from fedssl.errors import ConfigError
from fedssl.nets.backbone import BACKBONES, Backbone, Stem
from fedssl.nets.norm import BatchNorm2d


def _layer(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    """3x3 convolution, BatchNorm, ReLU. No bias: BatchNorm would take it out again."""
    conv = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(conv, BatchNorm2d(outputs, relu=True))


def _layers(channels: int, widths: tuple[int, ...], stride: int = 1) -> nn.ModuleList:
    inputs = (channels, *widths)
    return nn.ModuleList(_layer(i, o, stride) for i, o in zip(inputs, widths, strict=False))


def _quadrants(x: Tensor) -> Tensor:
    """Means over 2x2 fields: (n, c, h, w) of 2 or more a side to (n, 4·c)."""
    # Not adaptive_avg_pool2d: its backward pass on CUDA has no deterministic version.
    fields = (x.shape[2] + 1) // 2, (x.shape[3] + 1) // 2
    return F.avg_pool2d(x, fields, ceil_mode=True).flatten(1)


@BACKBONES.register("cnn5")
class CNN5(Backbone):
    """FedCA's encoder: (n, channels, h, w) of 16 pixels a side or more to (n, 2048).

    Zhang et al., "Federated Unsupervised Representation Learning", 2020: "5-layer CNN (Krizhevsky,
    Sutskever, and Hinton 2012)" that maps "input samples to representations with 2048-dimension", images of
    32 and 84 pixels.
    Departures: the paper leaves open widths, kernels, pooling, normalisation and what makes 2048 of it, so
    these are ours. Five convolutions of AlexNet's widths but for the last, which has 512 channels instead of
    256 and is averaged over 2x2 fields to make 2048 numbers; 3x3 kernels of stride 1, since AlexNet's 11x11
    of stride 4 would leave nothing of a small image; max-pooling after layers 1, 2 and 5 as in AlexNet;
    BatchNorm; no fully connected layers.
    """

    widths: ClassVar[tuple[int, ...]] = (96, 256, 384, 384, 512)
    pooled: ClassVar[tuple[int, ...]] = (0, 1, 4)

    def __init__(self, channels: int = 3, stem: Stem = "cifar") -> None:
        super().__init__()
        self.layers = _layers(channels, self.widths)
        self.dim = 4 * self.widths[-1]

    def forward(self, images: Tensor) -> Tensor:
        x = images
        for i, layer in enumerate(self.layers):
            x = layer(x)
            x = F.max_pool2d(x, 2) if i in self.pooled else x
        if min(x.shape[2:]) < 2:
            raise ConfigError(f"cnn5 needs images of 16 pixels a side or more (got {tuple(images.shape[2:])})")
        return _quadrants(x)


@BACKBONES.register("cnn")
class CNN(Backbone):
    """Three convolutions of stride 2, averaged over 2x2 fields: (n, channels, h, w) to (n, 512).

    About 1/200 of ResNet-18's work: to try an experiment on a CPU, not for its figures. Not averaged over the whole
    image, because where in a small picture something lies says much about what it is.
    """

    widths: ClassVar[tuple[int, ...]] = (32, 64, 128)

    def __init__(self, channels: int = 3, stem: Stem = "cifar") -> None:
        super().__init__()
        self.layers = _layers(channels, self.widths, stride=2)
        self.dim = 4 * self.widths[-1]

    def forward(self, images: Tensor) -> Tensor:
        x = images
        for layer in self.layers:
            x = layer(x)
        if min(x.shape[2:]) < 2:  # of images under 9 pixels a side: all fields see the one pixel there is
            x = F.pad(x, (0, int(x.shape[3] < 2), 0, int(x.shape[2] < 2)), mode="replicate")
        return _quadrants(x)
