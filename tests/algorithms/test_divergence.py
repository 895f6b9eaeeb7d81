"""Distances between models by hand."""

from __future__ import annotations

import math

import pytest
import torch

from fedssl import nets
from fedssl.algorithms._divergence import encoder_norm, layer_mean, layers
from fedssl.core.state.layout import Entry, Layout
from fedssl.core.state.state import State

LAYOUT = Layout.of(
    [
        Entry("backbone.conv1.weight", (2, 1, 3, 3), "weight"),
        Entry("backbone.layer1.0.conv2.weight", (1, 2, 1, 1), "weight"),
        Entry("backbone.layer1.0.downsample.0.weight", (1, 2, 1, 1), "weight"),
        Entry("backbone.bn1.weight", (2,), "norm"),
        Entry("backbone.bn1.running_mean", (2,), "statistic"),
        Entry("projector.0.weight", (3, 2), "weight"),
        Entry("predictor.0.weight", (3, 3), "weight"),
    ]
)


def _filled(**values: float) -> State:
    state = State.empty(LAYOUT)
    for name, tensor in state.tensors().items():
        for word, value in values.items():
            if word in name:
                tensor.fill_(value)
    return state


def test_the_mean_over_layers() -> None:
    """18 weights apart by 1 and 2 weights apart by 3: (√18 + √18) / 2. Nothing else counts."""
    zero = State.empty(LAYOUT)
    far = _filled(conv1=1, conv2=3, downsample=7, bn1=7, projector=7, predictor=7)
    assert layer_mean(zero, far).item() == pytest.approx(math.sqrt(18))
    assert (
        layer_mean(far, zero.pick(("backbone",)).overwritten(far.pick(("backbone",)))).item() == 0
    )


def test_over_backbone_and_projector() -> None:
    """18·1 + 2·9 + 2·4 (norm) + 6·4 = 68; statistics and predictor do not count."""
    far = _filled(conv1=1, conv2=3, downsample=0, projector=2, predictor=7)
    far.tensors()["backbone.bn1.weight"].fill_(2)
    far.tensors()["backbone.bn1.running_mean"].fill_(9)
    assert encoder_norm(State.empty(LAYOUT), far).item() == pytest.approx(math.sqrt(68))


@pytest.mark.parametrize(
    ("name", "count"), [("resnet18", 17), ("resnet50", 49), ("cnn5", 5), ("vit_tiny", 48)]
)
def test_layers_of_backbones(name: str, count: int) -> None:
    """A ResNet-18 has 17 convolutions without its shortcuts, a ResNet-50 49; a ViT's 12 blocks have
    4 matrices each.
    """
    with torch.device("meta"):
        backbone = nets.build(name)
    entries = [
        Entry(f"backbone.{n}", tuple(p.shape), "weight") for n, p in backbone.named_parameters()
    ]
    found = layers(Layout.of(entries))
    assert len(found) == count
