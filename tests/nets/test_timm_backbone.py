"""Models of timm as backbones: their keys and features, norm layers, image sizes and errors."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from error_messages import raises
from torch import Tensor, nn

from fedssl.core.errors import ConfigError
from fedssl.core.state.flatten import flatten_module
from fedssl.nets import PatchBackbone, build, check_backbone, uninitialized

oracle = pytest.mark.oracle


@pytest.fixture
def timm() -> Any:
    return pytest.importorskip("timm")


def _images(size: int, n: int = 2, channels: int = 3) -> Tensor:
    return torch.rand(n, channels, size, size, generator=torch.Generator().manual_seed(1))


def _pair(timm: Any, name: str, **options: Any) -> tuple[Any, Any]:
    """Return fedssl's and timm's model with the same weights and statistics, in eval mode."""
    torch.manual_seed(0)
    mine = build(f"timm:{name}")
    torch.manual_seed(0)
    theirs = timm.create_model(name, num_classes=0, **options)
    stream = torch.Generator().manual_seed(2)
    for key, tensor in theirs.state_dict().items():
        if key.endswith("running_var"):
            tensor.copy_(torch.rand(tensor.shape, generator=stream) + 0.5)
        elif key.endswith("running_mean"):
            tensor.copy_(torch.randn(tensor.shape, generator=stream) / 10)
    assert list(mine.state_dict()) == list(theirs.state_dict())
    mine.load_state_dict(theirs.state_dict())
    return mine.eval(), theirs.eval()


@oracle
@pytest.mark.parametrize(
    "name",
    ["resnet10t", "convnext_atto", "efficientnet_b0", "mobilenetv3_small_050", "regnetx_002"],
)
def test_features_are_those_of_timm_bit_for_bit(name: str, timm: Any) -> None:
    mine, theirs = _pair(timm, name)
    with torch.no_grad():
        expected = theirs(_images(64))
        features = mine(_images(64))
    assert torch.equal(features, expected)
    assert features.shape == (2, mine.dim)


@oracle
def test_a_vision_transformer_takes_images_of_any_size(timm: Any) -> None:
    mine, theirs = _pair(timm, "vit_tiny_patch16_224", dynamic_img_size=True)
    with torch.no_grad():
        assert torch.equal(mine(_images(224, 1)), theirs(_images(224, 1)))
        torch.testing.assert_close(mine(_images(48)), theirs(_images(48)), rtol=1e-4, atol=1e-5)
    with raises(ConfigError):
        mine(_images(40))


@oracle
def test_the_first_weights_are_those_that_timm_draws(timm: Any) -> None:
    torch.manual_seed(4)
    mine = build("timm:resnet10t", channels=1).state_dict()
    torch.manual_seed(4)
    theirs = timm.create_model("resnet10t", num_classes=0, in_chans=1).state_dict()
    assert all(torch.equal(mine[name], tensor) for name, tensor in theirs.items())


@oracle
def test_statistics_are_computed_for_each_view(timm: Any) -> None:
    """Two views in one pass give what timm's model gives for one after the other, in training."""
    mine, theirs = _pair(timm, "resnet10t")
    images = _images(32, 6)
    for module in mine.train().modules():
        if hasattr(module, "groups") and isinstance(module, nn.BatchNorm2d):
            module.groups = 2  # type: ignore[assignment]
    theirs.train()
    expected = torch.cat([theirs(images[:3]), theirs(images[3:])])
    torch.testing.assert_close(mine(images), expected, rtol=1e-4, atol=1e-4)
    for key, tensor in theirs.state_dict().items():
        if key.endswith(("running_mean", "running_var")):
            torch.testing.assert_close(mine.state_dict()[key], tensor, rtol=1e-4, atol=1e-5)


@oracle
def test_roles_of_layers(timm: Any) -> None:
    """Norm layers of any kind have the role norm; a layer scale and a token are weights."""
    roles = {}
    for name in ("convnext_atto", "efficientnet_b0", "test_vit"):
        layout = flatten_module(build(f"timm:{name}"), "cpu").layout
        roles.update({entry.name: entry.role for entry in layout.entries})
    assert roles["stem.1.weight"] == "norm"
    assert roles["stages.0.blocks.0.norm.bias"] == "norm"
    assert roles["stages.0.blocks.0.gamma"] == "weight"
    assert roles["head.norm.weight"] == "norm"
    assert roles["blocks.0.0.bn1.weight"] == "norm"
    assert roles["blocks.0.0.bn1.running_var"] == "statistic"
    assert roles["blocks.0.0.bn1.num_batches_tracked"] == "counter"
    assert roles["cls_token"] == roles["pos_embed"] == "weight"
    assert roles["blocks.0.norm1.weight"] == "norm"


@oracle
def test_an_rms_norm_of_timm_has_the_role_norm(timm: Any) -> None:
    net = nn.Sequential(timm.layers.RmsNorm(4), timm.layers.LayerNorm2d(4), nn.RMSNorm(4))
    roles = [entry.role for entry in flatten_module(net, "cpu").layout.entries]
    assert roles == ["norm"] * 4


@oracle
@pytest.mark.parametrize(
    "name", ["test_vit", "vit_tiny_patch16_224", "vit_pe_core_tiny_patch16_384"]
)
def test_all_patches_are_the_whole_image(name: str, timm: Any) -> None:
    torch.manual_seed(0)
    net = build(f"timm:{name}").eval()
    size = 64
    if not isinstance(net, PatchBackbone):
        pytest.skip(f"{name} is not a plain vision transformer in this version of timm")
    patches = (size // net.patch) ** 2
    order = torch.randperm(patches, generator=torch.Generator().manual_seed(0)).expand(2, -1)
    with torch.no_grad():
        whole = net.tokens(_images(size))
        shuffled = net.tokens(_images(size), order)
    assert whole.shape == (2, 1 + patches, net.dim)
    torch.testing.assert_close(shuffled[:, 1:], whole[:, 1:][:, order[0]], rtol=1e-4, atol=1e-4)
    if net.cls_token is not None:
        torch.testing.assert_close(whole[:, 0], net(_images(size)), rtol=1e-4, atol=1e-4)


@oracle
def test_a_patch_that_is_not_kept_is_not_seen(timm: Any) -> None:
    net = build("timm:test_vit").eval()
    assert isinstance(net, PatchBackbone)
    images = _images(32)
    keep = torch.tensor([[0, 3], [0, 3]])
    before = net.tokens(images, keep)
    images[..., :16, 16:] += 1  # the second of four patches
    assert torch.equal(net.tokens(images, keep), before)
    images[..., :16, :16] += 1
    assert not torch.equal(net.tokens(images, keep), before)


@oracle
@pytest.mark.parametrize("channels", [1, 4])
def test_other_channels(channels: int, timm: Any) -> None:
    net = build("timm:convnext_atto", channels)
    assert net.channels == channels
    check_backbone(net, "timm:convnext_atto", channels, [(32, 32)])


@oracle
def test_the_width_is_that_of_the_pooled_features(timm: Any) -> None:
    """MobileNetV3 has a layer after its pooling: 288 features before it, 1024 after it."""
    with uninitialized():
        assert build("timm:mobilenetv3_small_050").dim == 1024


@oracle
def test_group_normalisation(timm: Any) -> None:
    net = build("timm:regnetx_002", norm="group")
    assert not any("running_mean" in name for name in net.state_dict())
    check_backbone(net, "timm:regnetx_002", 3, [(32, 32)])


@oracle
def test_names_that_timm_does_not_have(timm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timm, "__version__", "1.0")
    for name in ("resnet81", "resnet18.a1_in1k", "hf_hub:timm/resnet18", "zzzz"):
        with raises(ConfigError):
            build(f"timm:{name}")


@oracle
def test_images_that_a_model_cannot_take(timm: Any) -> None:
    for name, size in (("levit_128s", 32), ("eva02_tiny_patch14_224", 32)):
        with raises(ConfigError):
            check_backbone(build(f"timm:{name}"), f"timm:{name}", 3, [(size, size)])


def test_a_missing_timm_is_an_error_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with raises(ConfigError):
        build("timm:resnet18")
