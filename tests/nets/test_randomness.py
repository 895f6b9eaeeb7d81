"""Layers that draw random numbers in training are switched off."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedssl.nets.randomness import disable_randomness


class _Rates(nn.Module):
    """A layer with the attributes of DenseNet's and of a probability that is no rate."""

    def __init__(self) -> None:
        super().__init__()
        self.drop_rate = 0.2
        self.prob = 0.3


def test_dropout_of_torch_is_switched_off() -> None:
    net = nn.Sequential(nn.Dropout(0.5), nn.Dropout2d(0.1), nn.AlphaDropout(0.1), nn.Dropout(0.0))
    assert disable_randomness(net) == ["0", "1", "2"]
    state = torch.get_rng_state()
    x = torch.ones(2, 3, 4, 4)
    assert torch.equal(net.train()(x), x)
    assert torch.equal(torch.get_rng_state(), state)


def test_attention_dropout_is_switched_off() -> None:
    attention = nn.MultiheadAttention(4, 2, dropout=0.5)
    assert disable_randomness(attention) == [""]
    x = torch.randn(3, 1, 4)
    once: Tensor = attention(x, x, x)[0]
    assert torch.equal(once, attention(x, x, x)[0])


def test_only_rates_are_changed() -> None:
    layer = _Rates()
    disable_randomness(layer)
    assert (layer.drop_rate, layer.prob) == (0.0, 0.3)


@pytest.mark.oracle
def test_layers_of_timm_and_torchvision_are_switched_off() -> None:
    layers = pytest.importorskip("timm.layers")
    ops = pytest.importorskip("torchvision.ops")
    net = nn.Sequential(
        layers.DropPath(0.5), layers.DropBlock2d(0.5), ops.StochasticDepth(0.5, "row")
    )
    assert disable_randomness(net) == ["0", "1", "2"]
    x = torch.ones(8, 3, 9, 9)
    state = torch.get_rng_state()
    assert torch.equal(net.train()(x), x)
    assert torch.equal(torch.get_rng_state(), state)
