"""Distances between models by hand."""

from __future__ import annotations

import math

import pytest
import torch

from fedssl import nets
from fedssl.algorithms._divergence import encoder_norm, layer_mean, layers
from fedssl.core.state.layout import Entry, Layout
from fedssl.core.state.state import State
from fedssl.nets.adapters import AdapterSettings

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
    """18 weights differ by 1 and 2 weights by 3: (√18 + √18) / 2. Nothing else counts."""
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


ADAPTED = Layout.of(
    [
        Entry("backbone.qkv.lora_A", (1, 2), "weight"),
        Entry("backbone.qkv.lora_B", (2, 1), "weight"),
        Entry("backbone.conv.lora_A", (1, 1, 1, 2), "weight"),
        Entry("backbone.conv.lora_B", (1, 1, 1, 1), "weight"),
        Entry("backbone.downsample.0.lora_A", (1, 2), "weight"),
        Entry("backbone.downsample.0.lora_B", (2, 1), "weight"),
        Entry("backbone.norm.weight", (2,), "norm"),
    ]
)


def _adapted(**values: list[float]) -> State:
    state = State.empty(ADAPTED)
    for key, numbers in values.items():
        layer, _, factor = key.partition("_")
        path = "downsample.0" if layer == "downsample" else layer
        view = state.tensors()[f"backbone.{path}.lora_{factor}"]
        view.copy_(torch.tensor(numbers).view(view.shape))
    return state


def test_with_adapters_the_distance_is_that_of_the_merged_weights() -> None:
    """alpha/rank = 4. qkv: B1·A1 = ((1, 0), (2, 0)), B2·A2 = ((0, 1), (0, 0)): √(1 + 1 + 4) = √6.

    conv: 3·(1, 1) - 0 has the norm √18. The shortcut does not count: 4·(√6 + √18) / 2.
    """
    one = _adapted(qkv_A=[1, 0], qkv_B=[1, 2], conv_A=[1, 1], conv_B=[3], downsample_A=[9, 9])
    other = _adapted(qkv_A=[0, 1], qkv_B=[1, 0], downsample_B=[9, 9])
    distance = layer_mean(one, other, AdapterSettings(rank=2, alpha=8.0))
    assert distance.item() == pytest.approx(2 * (math.sqrt(6) + math.sqrt(18)))


def test_other_factors_of_the_same_product_have_no_distance() -> None:
    """(2·B)·(A/2) = B·A, although the factors differ."""
    one = _adapted(qkv_A=[1, 3], qkv_B=[2, 4])
    other = _adapted(qkv_A=[0.5, 1.5], qkv_B=[4, 8])
    assert layer_mean(one, other, AdapterSettings(rank=8)).item() == 0
    assert encoder_norm(one, other).item() == pytest.approx(math.sqrt(0.25 + 2.25 + 4 + 16))
