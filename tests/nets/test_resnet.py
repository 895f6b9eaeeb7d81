"""Residual networks: torchvision's keys, numbers and initialisation."""

from __future__ import annotations

import math

import pytest
import torch
from error_messages import raises
from torch import nn

from fedssl.core.errors import ConfigError
from fedssl.nets import BACKBONES, ResNet, build
from fedssl.nets.resnet import Basic, Bottleneck

NAMES = ["resnet18", "resnet34", "resnet50"]


class TinyBasic(ResNet):
    block = Basic
    depths = (1, 1, 1, 1)
    width = 4


class TinyBottleneck(ResNet):
    block = Bottleneck
    depths = (1, 2, 1, 1)
    width = 4


@pytest.mark.parametrize(
    ("name", "stem", "millions", "dim"),
    [
        ("resnet18", "cifar", 11.168832, 512),
        ("resnet18", "imagenet", 11.176512, 512),
        ("resnet34", "imagenet", 21.284672, 512),
        ("resnet50", "cifar", 23.500352, 2048),
        ("resnet50", "imagenet", 23.508032, 2048),
    ],
)
def test_parameters_and_features(name: str, stem: str, millions: float, dim: int) -> None:
    with torch.device("meta"):
        net = build(name, stem=stem)
    assert sum(p.numel() for p in net.parameters()) == round(millions * 1e6)
    assert net.dim == dim
    assert net(torch.empty(2, 3, 32, 32, device="meta")).shape == (2, dim)


def test_keys_of_resnet18() -> None:
    def norm(name: str) -> list[str]:
        kinds = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
        return [f"{name}.{kind}" for kind in kinds]

    expected = ["conv1.weight", *norm("bn1")]
    for stage in range(1, 5):
        for block in range(2):
            at = f"layer{stage}.{block}"
            expected += [
                f"{at}.conv1.weight",
                *norm(f"{at}.bn1"),
                f"{at}.conv2.weight",
                *norm(f"{at}.bn2"),
            ]
            if stage > 1 and block == 0:
                expected += [f"{at}.downsample.0.weight", *norm(f"{at}.downsample.1")]
    with torch.device("meta"):
        assert list(build("resnet18").state_dict()) == expected


@pytest.mark.parametrize("tiny", [TinyBasic, TinyBottleneck])
@pytest.mark.parametrize(("stem", "size"), [("cifar", 8), ("imagenet", 32)])
def test_resolution_of_each_stage(tiny: type[ResNet], stem: str, size: int) -> None:
    net = tiny(channels=2, stem=stem)
    sizes = []
    for stage in (net.layer1, net.layer2, net.layer3, net.layer4):
        stage.register_forward_hook(lambda _m, _i, out: sizes.append(out[0].shape[-1]))
    features = net(torch.randn(3, 2, size, size))
    assert sizes == [8, 4, 2, 1]
    assert features.shape == (3, 32 * net.block.expansion) == (3, net.dim)


@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
def test_initialisation(stem: str) -> None:
    """CIFAR stem: uniform within 1/√fan_in, as torch. ImageNet stem: normal of variance 2/fan_out,
    as torchvision.
    """
    net = build("resnet18", stem=stem)
    for module in net.modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 30_000:
            area = module.kernel_size[0] ** 2
            fan_in = module.in_channels * area
            fan_out = module.out_channels * area
            std = math.sqrt(2 / fan_out) if stem == "imagenet" else math.sqrt(1 / (3 * fan_in))
            assert module.weight.std().item() == pytest.approx(std, rel=0.02)
        if isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()
            assert (module.momentum, module.eps) == (0.1, 1e-5)


def test_wrong_names_are_sentences() -> None:
    with raises(ConfigError):
        build("resnet81")
    with raises(ConfigError):
        build("resnet18", stem="imagnet")
    with raises(ConfigError):
        build("resnet18", channels=0)
    assert {"cnn", "cnn5", *NAMES} <= set(BACKBONES.names())


@pytest.mark.oracle
@pytest.mark.parametrize("name", NAMES)
def test_equals_torchvision(name: str) -> None:
    torchvision = pytest.importorskip("torchvision")
    theirs = getattr(torchvision.models, name)(weights=None)
    theirs.fc = nn.Identity()
    mine = build(name, stem="imagenet")
    assert list(mine.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict(mine.state_dict(), strict=True)
    x = torch.randn(4, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(mine(x), theirs(x), rtol=1e-4, atol=1e-5)
    for (key, a), b in zip(mine.state_dict().items(), theirs.state_dict().values(), strict=True):
        if not key.endswith("num_batches_tracked"):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(mine.eval()(x), theirs.eval()(x), rtol=1e-4, atol=1e-5)


@pytest.mark.oracle
def test_initialised_as_torchvision() -> None:
    models = pytest.importorskip("torchvision").models
    mine = build("resnet50", stem="imagenet").state_dict()
    theirs = models.resnet50().state_dict()
    for key, tensor in mine.items():
        if tensor.dim() == 4:
            assert tensor.std().item() == pytest.approx(theirs[key].std().item(), rel=0.05), key
        else:
            assert torch.equal(tensor, theirs[key]), key
