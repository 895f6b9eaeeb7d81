"""Two plain convolutional networks: FedCA's, and a small one for small images on a CPU."""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from fedssl.core.errors import ConfigError
from fedssl.nets.backbone import BACKBONES, Backbone, Stem
from fedssl.nets.norm import BatchNorm2d


def _layer(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    """Return a 3x3 convolution, BatchNorm and ReLU. No bias: BatchNorm would remove it."""
    conv = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(conv, BatchNorm2d(outputs, relu=True))


def _layers(channels: int, widths: tuple[int, ...], stride: int = 1) -> nn.ModuleList:
    """Return layers of these widths, the first for images of `channels` channels."""
    layers = nn.ModuleList()
    inputs = channels
    for outputs in widths:
        layers.append(_layer(inputs, outputs, stride))
        inputs = outputs
    return layers


def _quadrants(x: Tensor) -> Tensor:
    """Return the means over 2x2 fields: (n, c, h, w) of 2 or more pixels a side to (n, 4·c)."""
    # Not adaptive_avg_pool2d: its backward pass on CUDA has no deterministic version.
    # int: the ONNX exporter traces sizes as tensors, but the field of a pooling is constant.
    fields = (int(x.shape[2] + 1) // 2, int(x.shape[3] + 1) // 2)
    return F.avg_pool2d(x, fields, ceil_mode=True).flatten(1)


@BACKBONES.register("cnn5")
class CNN5(Backbone):
    """FedCA's encoder: (n, channels, h, w) of 16 pixels a side or more to (n, 2048).

    Zhang et al., "Federated Unsupervised Representation Learning", 2020: "5-layer CNN (Krizhevsky,
    Sutskever, and Hinton 2012)" that maps "input samples to representations with 2048-dimension",
    images of 32 and 84 pixels.
    Departures: the paper does not give widths, kernels, pooling, normalisation and the origin of
    the 2048 dimensions, so these are ours. Five convolutions of AlexNet's widths except the last,
    which has 512 channels instead of 256 and is averaged over 2x2 fields to give 2048 numbers; 3x3
    kernels of stride 1, since AlexNet's 11x11 of stride 4 are too coarse for a small image;
    max-pooling after layers 1, 2 and 5 as in AlexNet; BatchNorm; no fully connected layers.
    """

    widths: ClassVar[tuple[int, ...]] = (96, 256, 384, 384, 512)
    pooled: ClassVar[tuple[int, ...]] = (0, 1, 4)
    min_side: ClassVar[int] = 16  # pixels: three times halved, the last map has 2x2

    def __init__(self, channels: int = 3, stem: Stem = "cifar") -> None:
        super().__init__()
        self.layers = _layers(channels, self.widths)
        self.dim = 4 * self.widths[-1]

    def forward(self, images: Tensor) -> Tensor:
        """Return the features (n, 2048); a ConfigError if images are too small."""
        if min(images.shape[2:]) < self.min_side:
            height, width = images.shape[2:]
            raise ConfigError(
                f"cnn5 needs images of at least {self.min_side} × {self.min_side} pixels "
                f"(got {height} × {width}): use larger images or another backbone"
            )
        x = images
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if i in self.pooled:
                x = F.max_pool2d(x, 2)
        return _quadrants(x)


@BACKBONES.register("cnn")
class CNN(Backbone):
    """Three convolutions of stride 2, averaged over 2x2 fields: (n, channels, h, w) to (n, 512).

    It needs about 1/200 of ResNet-18's operations: it serves to try an experiment on a CPU, not to
    report figures. Features are not averaged over the whole image, because positions in a small
    image carry information about its content.
    """

    widths: ClassVar[tuple[int, ...]] = (32, 64, 128)

    def __init__(self, channels: int = 3, stem: Stem = "cifar") -> None:
        super().__init__()
        self.layers = _layers(channels, self.widths, stride=2)
        self.dim = 4 * self.widths[-1]

    def forward(self, images: Tensor) -> Tensor:
        """Return the features (n, 512)."""
        x = images
        for layer in self.layers:
            x = layer(x)
        if min(x.shape[2:]) < 2:
            # Images under 9 pixels a side end as one pixel, which is repeated for all fields.
            padding = (0, int(x.shape[3] < 2), 0, int(x.shape[2] < 2))
            x = F.pad(x, padding, mode="replicate")
        return _quadrants(x)
