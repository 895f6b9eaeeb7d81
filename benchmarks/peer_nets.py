"""The peer's networks: fedssl's ResNet-18 with the CIFAR stem and its `cnn`, with torch's layers.

The keys of the state_dicts equal fedssl's, so its weights can be loaded.
tests/benchmarks/test_peer.py checks that the networks are equal.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut: (n, inputs, h, w) to (n, width, h/stride, w/stride)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = nn.Sequential()
        if stride != 1 or inputs != width:
            shortcut = nn.Conv2d(inputs, width, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.downsample(x), inplace=True)


class ResNet18(nn.Module):
    """(n, 3, h, w) to (n, 512)."""

    dim = 512

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = nn.Sequential(Block(64, 64, 1), Block(64, 64, 1))
        self.layer2 = nn.Sequential(Block(64, 128, 2), Block(128, 128, 1))
        self.layer3 = nn.Sequential(Block(128, 256, 2), Block(256, 256, 1))
        self.layer4 = nn.Sequential(Block(256, 512, 2), Block(512, 512, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)


class CNN(nn.Module):
    """(n, 3, h, w) to (n, 512); h and w are multiples of 16."""

    dim = 512

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 32, 64, 128)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(i, o, 3, 2, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True)
            )
            for i, o in pairwise(widths)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return torch.flatten(F.adaptive_avg_pool2d(x, 2), 1)


NETS: dict[str, type[ResNet18] | type[CNN]] = {"resnet18": ResNet18, "cnn": CNN}
