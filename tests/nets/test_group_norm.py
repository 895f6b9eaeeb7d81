"""GroupNorm in place of BatchNorm: the same names, no statistics, no mixing of images."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from factories import (
    default_experiment,
    make_client,
    make_method,
    make_trainer,
    needs_patches,
    random_pixels,
)
from torch import nn

from fedssl import nets
from fedssl.method import METHODS
from fedssl.nets.group_norm import GroupNorm, group_count


@pytest.mark.parametrize(
    ("channels", "groups"), [(16, 1), (32, 2), (64, 4), (512, 32), (24, 3), (6, 3), (5, 5)]
)
def test_groups_have_16_channels_where_that_divides(channels: int, groups: int) -> None:
    assert group_count(channels) == groups


def test_by_hand() -> None:
    """(1, 3) and (0, 4) in two groups → ±1 each, up to the epsilon; + residual 0.5, ReLU."""
    norm = GroupNorm(2, 4, relu=True)
    x = torch.tensor([[1.0, 3.0, 0.0, 4.0]])
    assert torch.allclose(norm(x), torch.tensor([[0.0, 1.0, 0.0, 1.0]]), atol=1e-4)
    both = norm.twice(x, torch.full((1, 4), 0.5))
    for out in both:
        assert torch.allclose(out, torch.tensor([[0.0, 1.5, 0.0, 1.5]]), atol=1e-4)


@pytest.mark.parametrize("backbone", ["cnn", "cnn5", "resnet18", "resnet50"])
def test_weights_have_the_names_and_values_of_batch_norm(backbone: str) -> None:
    torch.manual_seed(0)
    with_batch = nets.build(backbone).state_dict()
    torch.manual_seed(0)
    with_groups = nets.build(backbone, norm="group").state_dict()
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    kept = {name for name in with_batch if not name.endswith(statistics)}
    assert with_groups.keys() == kept
    assert all(torch.equal(with_groups[name], with_batch[name]) for name in kept)


def test_an_image_does_not_change_the_features_of_another() -> None:
    torch.manual_seed(0)
    backbone = nets.build("resnet18", norm="group").train()
    images = torch.rand(4, 3, 16, 16)
    assert torch.allclose(backbone(images)[:2], backbone(images[:2]), atol=1e-5)
    evaluated = backbone.eval()(images)
    assert torch.allclose(evaluated, backbone.train()(images))


def test_a_resnet_equals_the_plain_formula() -> None:
    """The first block of a ResNet-18, written with torch.nn.functional."""
    torch.manual_seed(0)
    backbone = nets.build("resnet18", norm="group")
    w = backbone.state_dict()

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.group_norm(x, 4, w[f"{name}.weight"], w[f"{name}.bias"])

    images = torch.rand(2, 3, 8, 8)
    x = F.relu(norm(F.conv2d(images, w["conv1.weight"], padding=1), "bn1"))
    y = F.relu(norm(F.conv2d(x, w["layer1.0.conv1.weight"], padding=1), "layer1.0.bn1"))
    y = norm(F.conv2d(y, w["layer1.0.conv2.weight"], padding=1), "layer1.0.bn2")
    expected = F.relu(y + x)
    start = backbone.bn1.twice(backbone.conv1(images))
    block = backbone.layer1[0](*start)[0]
    assert torch.allclose(block, expected, atol=1e-5)


@pytest.mark.oracle
def test_torchvision_loads_the_weights() -> None:
    models = pytest.importorskip("torchvision").models
    backbone = nets.build("resnet18", 3, "imagenet", "group").eval()
    theirs = models.resnet18(norm_layer=lambda channels: nn.GroupNorm(channels // 16, channels))
    loaded = theirs.load_state_dict(backbone.state_dict(), strict=False)
    assert loaded.missing_keys == ["fc.weight", "fc.bias"]
    assert not loaded.unexpected_keys
    theirs.fc = nn.Identity()
    images = torch.rand(2, 3, 64, 64)
    assert torch.allclose(theirs.eval()(images), backbone(images), atol=1e-5)


@pytest.mark.parametrize("name", METHODS.names())
def test_no_method_has_statistics_or_layers_that_mix_images(name: str) -> None:
    """All methods train, and the layers of a target have no gradients."""
    method = make_method(name, norm="group")
    roles = {entry.role for entry in method.state.layout.entries if entry.part != "queue"}
    assert "statistic" not in roles
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in method.modules())
    if "target" in method._modules and "target" not in method.trained:
        assert not any(parameter.requires_grad for parameter in method.target.parameters())


@pytest.mark.parametrize("name", ["byol", "simclr", "mae"])
def test_methods_train(name: str) -> None:
    trainer = make_trainer(name, norm="group")
    before = trainer.method.state.clone()
    make_client(trainer, random_pixels(16), lr=0.1).train(
        lambda method, batch, out, constants: method.loss(out, constants), {}, lambda n, g: {}
    )
    assert trainer.method.state.distance(before) > 0
    assert trainer.method.state.floats.isfinite().all()
    assert needs_patches(name) == (name == "mae")


def test_the_default_leaves_the_hash_unchanged() -> None:
    assert default_experiment().hash() == default_experiment(method__norm="batch").hash()
    assert default_experiment().hash() != default_experiment(method__norm="group").hash()
