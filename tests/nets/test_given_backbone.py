"""Backbones passed from Python: their names, weights and what a backbone must have."""

from __future__ import annotations

import copy

import pytest
import torch
from error_messages import raises
from torch import Tensor, nn

from fedssl.core.errors import ConfigError
from fedssl.nets import Backbone, build, give_backbone, given_weights, uninitialized
from fedssl.nets import given_backbone as module_under_test
from fedssl.nets.norm import BatchNorm2d


class Net(nn.Module):
    """Six features of images of three channels."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, stride=2)
        self.norm = nn.BatchNorm2d(width)
        self.dim = width

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.norm(self.conv(images)).relu().mean((2, 3))
        return features


class Demanding(Net):
    """Its constructor reads the value of a tensor, which a tensor without memory does not have."""

    def __init__(self) -> None:
        super().__init__(int(torch.linspace(2, 6, 3).tolist()[-1]))


@pytest.fixture(autouse=True)
def _nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_under_test, "_given", {})


def test_the_name_follows_from_the_layers() -> None:
    assert give_backbone(Net) == give_backbone(Net()) == give_backbone(lambda: Net())
    assert give_backbone(Net).startswith("given:Net-")
    assert give_backbone(lambda: Net(7)) != give_backbone(Net)
    assert give_backbone("resnet18") == "resnet18"


def test_the_name_does_not_depend_on_addresses() -> None:
    def activation(x: Tensor) -> Tensor:
        return x

    class WithFunction(Net):
        def extra_repr(self) -> str:
            return f"{activation} at {hex(id(self))}"

    assert give_backbone(WithFunction()) == give_backbone(WithFunction())


def test_a_function_draws_weights_from_the_seed() -> None:
    name = give_backbone(Net)
    state = torch.get_rng_state()
    give_backbone(Net)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(3)
    first = build(name)
    torch.manual_seed(3)
    expected = Net()
    assert torch.equal(first.state_dict()["conv.weight"], expected.conv.weight)
    assert given_weights(name) is None


def test_a_module_is_the_start_of_every_model() -> None:
    module = Net()
    weight = module.conv.weight.detach().clone()
    name = give_backbone(module)
    with torch.no_grad():
        module.conv.weight.zero_()  # too late: it was copied
    one = build(name)
    other = build(name)
    assert torch.equal(one.state_dict()["conv.weight"], weight)
    assert (
        one.state_dict()["conv.weight"].data_ptr() != other.state_dict()["conv.weight"].data_ptr()
    )
    digest = given_weights(name)
    assert digest is not None
    assert given_weights(give_backbone(Net())) != digest


def test_it_is_a_backbone_with_its_own_class_and_keys() -> None:
    built = build(give_backbone(Net), channels=3)
    assert isinstance(built, Backbone)
    assert isinstance(built, Net)
    assert (built.dim, built.channels) == (6, 3)
    assert isinstance(built.norm, BatchNorm2d)
    assert list(built.state_dict()) == list(Net().state_dict())
    copied = copy.deepcopy(built)
    images = torch.rand(2, 3, 8, 8)
    assert torch.equal(copied.eval()(images), built.eval()(images))


def test_a_function_that_returns_one_module_gives_several_models() -> None:
    module = Net()
    name = give_backbone(lambda: module)
    one = build(name)
    other = build(name)
    assert one is not other
    assert type(module) is Net


def test_a_model_without_memory_can_be_built() -> None:
    name = give_backbone(Demanding)
    with uninitialized():
        built = build(name)
    assert built.dim == 6


def test_num_features_is_the_width_too() -> None:
    module = Net()
    module.num_features = 6
    del module.dim
    assert build(give_backbone(module)).dim == 6


def test_invalid_backbones() -> None:
    class Compiled(Net):
        channels = 5  # a backbone has another meaning of this word

    lazy = Net()
    lazy.conv = nn.LazyConv2d(6, 3)  # type: ignore[assignment]
    for wrong in (3, lambda: 3, nn.Linear(2, 2), lazy):
        with raises(ConfigError):
            give_backbone(wrong)
    with raises(ConfigError):
        build(give_backbone(Compiled), channels=3)


def test_a_backbone_of_another_process_is_an_error() -> None:
    with raises(ConfigError):
        build("given:Net-0123456789ab")
