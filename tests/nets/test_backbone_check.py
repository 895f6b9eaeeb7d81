"""A backbone that cannot be trained reproducibly is rejected before training."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from error_messages import raises
from torch import Tensor, nn

from fedssl.core.errors import ConfigError
from fedssl.nets import Backbone, check_backbone
from fedssl.nets.adopted import adopt

IMAGES = [(8, 8)]


class Net(nn.Module):
    """Four features of images of three channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.norm(self.conv(images)).mean((2, 3))
        return features


def _check(net: nn.Module, dim: int = 4) -> None:
    backbone = adopt(net, "mine", {"dim": dim, "channels": 3})
    check_backbone(backbone, "mine", 3, IMAGES)


def test_a_sound_backbone_passes_and_is_left_as_it_is() -> None:
    net = Net()
    net.register_buffer("index", torch.arange(3))
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    state = torch.get_rng_state()
    _check(net)
    assert torch.equal(torch.get_rng_state(), state)
    assert net.training
    after = net.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


class TorchNoise(Net):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) + torch.rand(1) * self.training


class NumpyNoise(Net):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) + 0 * float(np.random.rand())


class PythonNoise(Net):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) + 0 * random.random()


class OwnNoise(Net):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, images: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(images) + self.calls * self.training


class Centred(Net):
    def forward(self, images: Tensor) -> Tensor:
        features = super().forward(images)
        return features - features.mean(0) if self.training else features


class Counting(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, images: Tensor) -> Tensor:
        self.calls += self.training
        return super().forward(images)


class Maps(Net):
    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.conv(images)
        return maps


class NoGradient(Net):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images).detach()


class Tied(Net):
    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Conv2d(3, 4, 3)
        self.other.weight = self.conv.weight


class Frozen(Net):
    def __init__(self) -> None:
        super().__init__()
        self.conv.weight.requires_grad_(False)


class Mask(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(2, dtype=torch.bool))


class Infinite(Net):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) / 0


class Large(Net):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 9)


@pytest.mark.parametrize(
    "net",
    [
        TorchNoise, NumpyNoise, PythonNoise, OwnNoise, Centred, Counting, Maps, NoGradient, Tied,
        Frozen, Mask, Infinite, Large,
    ],
)  # fmt: skip
def test_an_unsound_backbone_is_rejected(net: type[nn.Module]) -> None:
    with raises(ConfigError):
        _check(net())


def test_another_width_than_promised_is_rejected() -> None:
    with raises(ConfigError):
        _check(Net(), dim=5)


def test_generators_that_a_backbone_used_are_restored() -> None:
    nets = [TorchNoise(), PythonNoise()]
    state = torch.get_rng_state()
    python = random.getstate()
    for net in nets:
        with pytest.raises(ConfigError):
            _check(net)
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == python


def test_adopting_keeps_the_methods_of_the_class() -> None:
    net = OwnNoise()
    backbone: Backbone = adopt(net, "mine", {"dim": 4})
    assert backbone is net
    backbone.eval()(torch.rand(1, 3, 8, 8))
    assert net.calls == 1
