"""Vision transformers: timm's keys and numbers; positions for any grid."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from error_messages import raises
from torch import Tensor

from fedssl.core.errors import ConfigError
from fedssl.nets import ViT, ViTMini, build, load_backbone, save_backbone
from fedssl.nets.vit import Attention, resample, sines


@pytest.mark.parametrize(
    ("name", "stem", "size", "parameters", "dim"),
    [
        (
            "vit_tiny",
            "imagenet",
            224,
            5_524_416,
            192,
        ),  # timm's 5,717,416 less a classifier of 192·1000 + 1000
        ("vit_tiny", "cifar", 32, 5_390_784, 192),
        ("vit_mini", "cifar", 28, 207_424, 64),
        ("vit_mini", "imagenet", 64, 261_952, 64),
    ],
)
def test_parameters_and_features(
    name: str, stem: str, size: int, parameters: int, dim: int
) -> None:
    """A block has 12·dim² + 13·dim: 4 + 8 of dim² in attention and MLP, 4 + 5 of biases, 4 of
    norms.
    """
    with torch.device("meta"):
        net = build(name, stem=stem)
    assert sum(p.numel() for p in net.parameters()) == parameters
    assert net.dim == dim
    assert net(torch.empty(2, 3, size, size, device="meta")).shape == (2, dim)


def test_keys() -> None:
    def pair(name: str) -> list[str]:
        return [f"{name}.weight", f"{name}.bias"]

    expected = ["cls_token", "pos_embed", *pair("patch_embed.proj")]
    for i in range(4):
        for layer in ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2"):
            expected += pair(f"blocks.{i}.{layer}")
    assert list(build("vit_mini").state_dict()) == [*expected, *pair("norm")]


def _attend(x: Tensor, attention: Attention) -> Tensor:
    """Attention by a loop over images, heads and tokens."""
    n, t, dim = x.shape
    size = dim // attention.heads
    mixed = torch.zeros(n, t, dim)
    for i in range(n):
        rows = x[i] @ attention.qkv.weight.T + attention.qkv.bias
        for head in range(attention.heads):
            q, k, v = (rows[:, part * dim + head * size :][:, :size] for part in range(3))
            for a in range(t):
                weight = torch.stack([q[a] @ k[b] / math.sqrt(size) for b in range(t)]).softmax(0)
                mixed[i, a, head * size : (head + 1) * size] = sum(
                    weight[b] * v[b] for b in range(t)
                )
    return mixed @ attention.proj.weight.T + attention.proj.bias


def test_attention_equals_loops() -> None:
    torch.manual_seed(0)
    attention = Attention(6, 2)
    x = torch.randn(2, 3, 6)
    torch.testing.assert_close(attention(x), _attend(x, attention))


def test_all_patches_in_any_order_are_the_whole_image() -> None:
    torch.manual_seed(0)
    net = ViTMini()
    images = torch.randn(2, 3, 16, 16)
    order = torch.stack([torch.randperm(16), torch.randperm(16)])
    whole = net.tokens(images)
    shuffled = net.tokens(images, order)
    torch.testing.assert_close(shuffled[:, 0], net(images), rtol=1e-4, atol=1e-5)
    for i in range(2):
        torch.testing.assert_close(shuffled[i, 1:], whole[i, 1:][order[i]], rtol=1e-4, atol=1e-5)


def test_a_patch_that_is_not_kept_is_not_seen() -> None:
    torch.manual_seed(0)
    net = ViTMini()
    images = torch.randn(1, 3, 8, 8)
    keep = torch.tensor([[0, 3]])
    before = net.tokens(images, keep)
    images[..., :4, 4:] += 1  # the second of four patches
    assert before.shape == (1, 3, 64)
    assert torch.equal(net.tokens(images, keep), before)
    images[..., :4, :4] += 1
    assert not torch.equal(net.tokens(images, keep), before)


def test_position_embeddings_differ() -> None:
    """Sines of row and column: distances depend on the step between two places, and no two places
    are equal.
    """
    places = sines(5, 16).view(5, 5, 16)
    assert len(places.flatten(0, 1).unique(dim=0)) == 25
    torch.testing.assert_close(
        (places[1, 2] - places[2, 4]).norm(), (places[3, 1] - places[4, 3]).norm()
    )
    torch.testing.assert_close(places.square().sum(-1), torch.full((5, 5), 8.0))


def test_first_weights() -> None:
    """Xavier: uniform within √(6 / (inputs + outputs)). Positions: those of the nominal grid."""
    net = build("vit_tiny")
    weight = net.blocks[3].mlp.fc1.weight
    bound = math.sqrt(6 / (192 + 768))
    assert 0.99 * bound < weight.abs().max() <= bound
    assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)
    assert (net.blocks[3].mlp.fc1.bias == 0).all()
    assert torch.equal(net.pos_embed[0, 1:], sines(16, 192))
    assert (net.pos_embed[0, 0] == 0).all()


@pytest.mark.parametrize("grid", [(7, 7), (5, 16), (20, 12), (8, 8)])
def test_positions_for_another_grid(grid: tuple[int, int]) -> None:
    positions = torch.randn(1, 64, 3, generator=torch.Generator().manual_seed(0))
    image = positions.view(1, 8, 8, 3).permute(0, 3, 1, 2)
    expected = F.interpolate(image, grid, mode="bicubic", antialias=True).flatten(2).transpose(1, 2)
    torch.testing.assert_close(resample(positions, 8, grid), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [8, 28, 32])
def test_every_parameter_takes_a_gradient(size: int) -> None:
    torch.manual_seed(0)
    net = build("vit_mini", channels=1)
    net(torch.randn(2, 1, size, size)).square().sum().backward()
    assert [name for name, p in net.named_parameters() if p.grad is None] == []
    assert (
        (net.pos_embed.grad != 0).any(-1).all()
    )  # also of positions that a small image only has a share in


def test_images_that_cannot_be_cut() -> None:
    with raises(ConfigError):
        build("vit_mini")(torch.empty(1, 3, 30, 32))


def test_weights_with_a_classifier_load(tmp_path: Path) -> None:
    torch.manual_seed(0)
    one = build("vit_mini")
    other = build("vit_mini", channels=1)
    head = {"head.weight": torch.ones(10, 64), "head.bias": torch.ones(10)}
    save_backbone({**one.state_dict(), **head}, tmp_path / "w.safetensors", {})
    load_backbone(other, tmp_path / "w.safetensors")
    grey = torch.rand(2, 1, 32, 32)
    torch.testing.assert_close(other(grey), one(grey.expand(-1, 3, -1, -1)), rtol=1e-4, atol=1e-5)


@pytest.mark.oracle
def test_equals_timm() -> None:
    timm = pytest.importorskip("timm")
    theirs = timm.create_model("vit_tiny_patch16_224", num_classes=0).eval()
    mine = build("vit_tiny", stem="imagenet").eval()
    assert isinstance(mine, ViT)
    assert list(mine.state_dict()) == list(theirs.state_dict())
    for (key, a), b in zip(mine.state_dict().items(), theirs.state_dict().values(), strict=True):
        assert a.shape == b.shape, key
    theirs.load_state_dict(mine.state_dict(), strict=True)
    x = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(mine(x), theirs(x), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(mine.tokens(x), theirs.forward_features(x), rtol=1e-5, atol=1e-5)


@pytest.mark.oracle
def test_positions_equal_timms() -> None:
    layers = pytest.importorskip("timm.layers")
    positions = torch.randn(1, 1 + 14 * 14, 8, generator=torch.Generator().manual_seed(0))
    theirs = layers.resample_abs_pos_embed(positions, [9, 20])
    torch.testing.assert_close(
        resample(positions[:, 1:], 14, (9, 20)), theirs[:, 1:], rtol=1e-4, atol=1e-5
    )
