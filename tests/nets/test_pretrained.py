"""Files of pre-trained weights: foreign names, layer scales, positions of another grid, heads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from error_messages import raises
from safetensors.torch import save_file
from torch import Tensor

from fedssl.core.errors import ConfigError
from fedssl.nets import ViTMini, build, load_backbone, unused_tensors
from fedssl.nets.pretrained import fit


class SmallViT(ViTMini):
    """Two blocks of width 8, with positions of 8 x 8 patches."""

    width = 8
    depth = 2
    heads = 2


def _filled(shapes: dict[str, Tensor], seed: int = 0) -> dict[str, Tensor]:
    stream = torch.Generator().manual_seed(seed)
    return {name: torch.randn(tensor.shape, generator=stream) for name, tensor in shapes.items()}


def _images() -> Tensor:
    return torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(9))


def _dinov2(seed: int = 0) -> dict[str, Tensor]:
    """Return the tensors of a small DINOv2, with layer scales and a mask token."""
    tensors = _filled(SmallViT().state_dict(), seed)
    stream = torch.Generator().manual_seed(seed + 100)
    for block in range(2):
        for number in (1, 2):
            gamma = torch.rand(8, generator=stream)
            tensors[f"blocks.{block}.ls{number}.gamma"] = gamma
    return {**tensors, "mask_token": torch.zeros(1, 8)}


def _with_layer_scales(net: SmallViT, tensors: dict[str, Tensor], images: Tensor) -> Tensor:
    """Return features as DINOv2 computes them: each branch times its scale."""
    own = {name: tensor for name, tensor in tensors.items() if name in net.state_dict()}
    net.load_state_dict(own)
    x = net.patch_embed(images) + net.pos_embed[:, 1:]
    x = torch.cat([(net.cls_token + net.pos_embed[:, :1]).expand(len(images), -1, -1), x], 1)
    for number, block in enumerate(net.blocks):
        x = x + tensors[f"blocks.{number}.ls1.gamma"] * block.attn(block.norm1(x))
        x = x + tensors[f"blocks.{number}.ls2.gamma"] * block.mlp(block.norm2(x))
    return net.norm(x)[:, 0]


def test_layer_scales_are_multiplied_into_the_weights(tmp_path: Path) -> None:
    tensors = _dinov2()
    save_file(tensors, tmp_path / "dinov2.safetensors")
    net = SmallViT()
    load_backbone(net, tmp_path / "dinov2.safetensors")
    expected = _with_layer_scales(SmallViT(), tensors, _images())
    torch.testing.assert_close(net(_images()), expected, rtol=1e-4, atol=1e-4)
    assert unused_tensors(net, tmp_path / "dinov2.safetensors") == ["mask_token"]


def test_a_training_checkpoint_gives_its_teacher() -> None:
    """Blocks are cut into chunks: the second number is that of the block."""
    expected = SmallViT().state_dict()
    teacher = _filled(expected, seed=1)
    nested = {"teacher.dino_head.last.weight": torch.ones(2, 2)}
    for network, tensors in (("student", _filled(expected, seed=2)), ("teacher", teacher)):
        for name, tensor in tensors.items():
            chunked = name.replace("blocks.", "blocks.0.")
            nested[f"model.{network}.backbone.{chunked}"] = tensor
    del nested["teacher.dino_head.last.weight"]
    nested["model.teacher.dino_head.last.weight"] = torch.ones(2, 2)
    fitted = fit(nested, expected)
    assert fitted.tensors.keys() == expected.keys()
    assert all(torch.equal(fitted.tensors[name], teacher[name]) for name in expected)
    assert fitted.unused[-1] == "dino_head.last.weight"
    outside = [name for name in fitted.unused if name.startswith("student.")]
    assert len(outside) == len(expected) == len(fitted.unused) - 1


def test_a_backbone_with_a_part_of_that_name_is_not_a_checkpoint() -> None:
    expected = {"model.weight": torch.ones(2), "bias": torch.ones(1)}
    assert fit(expected, expected).tensors.keys() == expected.keys()


def test_positions_are_resampled_and_the_class_token_keeps_its_own() -> None:
    """Equal embeddings stay equal on any grid, since the weights of a resampling add up to 1."""
    expected = SmallViT().state_dict()  # 8 x 8 patches
    tensors = _filled(expected)
    tensors["pos_embed"] = torch.full((1, 1 + 5 * 5, 8), 3.0)
    tensors["pos_embed"][:, 0] = 7.0
    positions = fit(tensors, expected).tensors["pos_embed"]
    assert positions.shape == (1, 65, 8)
    assert torch.equal(positions[:, 0], torch.full((1, 8), 7.0))
    torch.testing.assert_close(positions[:, 1:], torch.full((1, 64, 8), 3.0))


def test_registers_of_a_model_whose_prefix_has_no_position() -> None:
    """The position of the class token is added to it: 2 + 0.5."""
    expected = {
        "cls_token": torch.empty(1, 1, 4),
        "reg_token": torch.empty(1, 3, 4),
        "pos_embed": torch.empty(1, 4, 4),
    }
    tensors = {
        "cls_token": torch.full((1, 1, 4), 2.0),
        "register_tokens": torch.full((1, 3, 4), 1.0),
        "pos_embed": torch.full((1, 5, 4), 0.5),
    }
    fitted = fit(tensors, expected).tensors
    assert torch.equal(fitted["cls_token"], torch.full((1, 1, 4), 2.5))
    assert torch.equal(fitted["reg_token"], tensors["register_tokens"])
    assert torch.equal(fitted["pos_embed"], torch.full((1, 4, 4), 0.5))


def test_a_file_without_a_position_of_the_class_token() -> None:
    expected = {"cls_token": torch.empty(1, 1, 4), "pos_embed": torch.empty(1, 5, 4)}
    tensors = {"cls_token": torch.ones(1, 1, 4), "pos_embed": torch.ones(1, 4, 4)}
    fitted = fit(tensors, expected).tensors
    assert fitted["pos_embed"][0, :, 0].tolist() == [0.0, 1.0, 1.0, 1.0, 1.0]
    assert torch.equal(fitted["cls_token"], tensors["cls_token"])


def test_missing_and_surplus_tensors_are_named(tmp_path: Path) -> None:
    complete = _filled(SmallViT().state_dict())
    wrong = [
        {name: tensor for name, tensor in complete.items() if not name.startswith("blocks.1.")},
        {**complete, "register_tokens": torch.ones(1, 4, 8)},
        {**complete, "blocks.2.norm1.weight": torch.ones(8)},
        {**complete, "pos_embed": torch.ones(1, 65, 12)},
    ]
    for tensors in wrong:
        save_file(tensors, tmp_path / "wrong.safetensors")
        with raises(ConfigError):
            load_backbone(SmallViT(), tmp_path / "wrong.safetensors")


def test_a_pickled_file_with_the_name_of_a_safetensors_file(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(1)}, tmp_path / "weights.safetensors")
    with raises(ConfigError):
        load_backbone(SmallViT(), tmp_path / "weights.safetensors")


@pytest.mark.oracle
def test_weights_of_torchvisions_vision_transformer(tmp_path: Path) -> None:
    models = pytest.importorskip("torchvision.models")
    theirs = models.VisionTransformer(
        image_size=32, patch_size=4, num_layers=4, num_heads=4, hidden_dim=64, mlp_dim=256
    ).eval()
    torch.nn.init.normal_(theirs.class_token)
    save_file(theirs.state_dict(), tmp_path / "vit.safetensors")
    mine = build("vit_mini").eval()
    load_backbone(mine, tmp_path / "vit.safetensors")
    theirs.heads = torch.nn.Identity()
    with torch.no_grad():
        torch.testing.assert_close(mine(_images()), theirs(_images()), rtol=1e-4, atol=1e-5)


@pytest.mark.oracle
@pytest.mark.parametrize("registers", [0, 4])
def test_dinov2_is_converted_as_by_timm(registers: int) -> None:
    vision_transformer = pytest.importorskip("timm.models.vision_transformer")
    theirs = vision_transformer.VisionTransformer(
        img_size=28, patch_size=14, embed_dim=8, depth=2, num_heads=2, init_values=1e-5,
        num_classes=0, reg_tokens=registers, no_embed_class=registers > 0,
    )  # fmt: skip
    expected = theirs.state_dict()
    official = _filled({name: t for name, t in expected.items() if name != "reg_token"})
    official["pos_embed"] = torch.randn(1, 5, 8)
    official["mask_token"] = torch.zeros(1, 8)
    if registers:
        official["register_tokens"] = torch.randn(1, registers, 8)
    converted = vision_transformer._convert_dinov2(dict(official), theirs)
    fitted = fit(official, expected)
    assert fitted.tensors.keys() == converted.keys() == expected.keys()
    for name, tensor in converted.items():
        assert torch.equal(fitted.tensors[name], tensor.view_as(expected[name])), name


@pytest.mark.oracle
@pytest.mark.parametrize("grid", [7, 16])
def test_positions_are_resampled_as_by_timm(grid: int) -> None:
    layers = pytest.importorskip("timm.layers")
    positions = torch.randn(1, 1 + 37 * 37, 8, generator=torch.Generator().manual_seed(0))
    theirs = layers.resample_abs_pos_embed(positions, [grid, grid])
    mine = fit({"pos_embed": positions}, {"pos_embed": theirs}).tensors["pos_embed"]
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
