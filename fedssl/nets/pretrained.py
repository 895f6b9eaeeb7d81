"""Fit the tensors of a file of weights to a backbone: their names, and the size of positions.

Names may be those of fedssl, of torchvision's ResNets and vision transformers, of timm, and of
DINOv2 (Oquab et al., "DINOv2: Learning Robust Visual Features without Supervision", TMLR 2024),
whose training checkpoints cut blocks into chunks and contain two networks with heads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fedssl.core.errors import ConfigError
from fedssl.nets.vit import resample

Tensors = dict[str, Tensor]

PREFIXES = ("module.", "backbone.", "encoder.")
# Networks and tables of a training checkpoint, in the order of preference.
_NETWORKS = ("state_dict", "model", "teacher", "student")
# The beginnings of names that are not part of a backbone.
_HEADS = (
    "classifier.", "decoder", "dino_head.", "fc.", "head.", "head_dist.", "heads.", "ibot_head.",
    "mask_token", "predictor.", "projection_head.", "projector.", "prototypes.",
)  # fmt: skip
# Applied one after the other to a name that the backbone does not have.
_RENAMES = (
    (r"^blocks\.\d+\.(\d+)\.", r"blocks.\1."),  # DINOv2: the second number counts all blocks
    (r"\.mlp\.w12\.", ".mlp.fc1."),
    (r"\.mlp\.w3\.", ".mlp.fc2."),
    (r"^register_tokens$", "reg_token"),
    (r"^class_token$", "cls_token"),  # from here on torchvision, without its prefix encoder
    (r"^pos_embedding$", "pos_embed"),
    (r"^conv_proj\.", "patch_embed.proj."),
    (r"^layers\.encoder_layer_(\d+)\.", r"blocks.\1."),
    (r"\.ln_([12])\.", r".norm\1."),
    (r"\.self_attention\.in_proj_", ".attn.qkv."),
    (r"\.self_attention\.out_proj\.", ".attn.proj."),
    (r"\.mlp\.(?:0|linear_1)\.", ".mlp.fc1."),
    (r"\.mlp\.(?:3|linear_2)\.", ".mlp.fc2."),
    (r"^ln\.", "norm."),
)
_LAYER_SCALE = re.compile(r"(blocks\.\d+)\.ls([12])\.gamma")
_SCALED = {"1": "attn.proj", "2": "mlp.fc2"}  # the layer whose output a layer scale multiplies


class Fitted(NamedTuple):
    """The tensors of a file by their names in a backbone, and the names that it does not have."""

    tensors: Tensors
    unused: list[str]  # in the file, without the names of networks around them


def fit(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> Fitted:
    """Return the tensors of a file as a backbone with the state_dict `expected` names them.

    Heads are not used. A layer scale that the backbone does not have is multiplied into the layer
    before it, and position embeddings are resampled to the backbone's grid. Names and shapes that
    do not fit are returned as they are.
    """
    selected, unused = _select_network(tensors, expected)
    renamed: Tensors = {}
    for full_name, tensor in selected.items():
        name = _name_in_backbone(full_name, expected)
        if name in renamed:
            raise ConfigError(
                f"the weights file has {name} twice, under different prefixes: remove one of them"
            )
        if name in expected or not name.startswith(_HEADS):
            renamed[name] = tensor
        else:
            unused.append(name)
    _merge_layer_scales(renamed, expected)
    _fit_positions(renamed, expected)
    return Fitted(renamed, unused)


def _select_network(
    tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]
) -> tuple[Tensors, list[str]]:
    """Return the tensors of one network of a training checkpoint, and the names of the others."""
    known = {name.partition(".")[0] for name in expected}
    selected = dict(tensors)
    unused: list[str] = []
    names = [name for name in _NETWORKS if name not in known]
    position = 0
    while position < len(names):
        prefix = f"{names[position]}."
        inside = {n.removeprefix(prefix): t for n, t in selected.items() if n.startswith(prefix)}
        position += 1
        if inside:
            unused += [name for name in selected if not name.startswith(prefix)]
            selected = inside
            position = 0
    return selected, unused


def _name_in_backbone(name: str, expected: Mapping[str, Tensor]) -> str:
    """Return the name of a tensor in the backbone; its own names may start with a prefix."""
    while name not in expected and name.startswith(PREFIXES):
        prefix = next(prefix for prefix in PREFIXES if name.startswith(prefix))
        name = name.removeprefix(prefix)
    if name in expected:
        return name
    renamed = name
    for pattern, replacement in _RENAMES:
        renamed = re.sub(pattern, replacement, renamed)
    if renamed in expected or _LAYER_SCALE.fullmatch(renamed):
        return renamed
    return name


def _merge_layer_scales(tensors: Tensors, expected: Mapping[str, Tensor]) -> None:
    """Multiply layer scales that the backbone does not have into weights and biases, in place."""
    for name in list(tensors):
        match = _LAYER_SCALE.fullmatch(name)
        if match is None or name in expected:
            continue
        layer = f"{match[1]}.{_SCALED[match[2]]}"
        weight = tensors.get(f"{layer}.weight")
        bias = tensors.get(f"{layer}.bias")
        if weight is None or bias is None:
            continue
        gamma = tensors.pop(name).float()
        tensors[f"{layer}.weight"] = weight.float() * gamma[:, None]
        tensors[f"{layer}.bias"] = bias.float() * gamma


def _fit_positions(tensors: Tensors, expected: Mapping[str, Tensor]) -> None:
    """Resample position embeddings (1, p + t, dim) to the backbone's grid, in place.

    An embedding of the class token that the backbone does not have is added to that token.
    """
    positions = tensors.get("pos_embed")
    wanted = expected.get("pos_embed")
    if positions is None or wanted is None or positions.ndim != 3 or wanted.ndim != 3:
        return
    if positions.shape[2] != wanted.shape[2]:
        return
    extra = _prefix_length(positions)
    wanted_extra = _prefix_length(wanted)
    if extra is None or wanted_extra is None:
        return
    positions = positions.float()
    of_class = positions[:, :extra]
    of_patches = positions[:, extra:]
    if extra and not wanted_extra and "cls_token" in tensors:
        tensors["cls_token"] = tensors["cls_token"].float() + of_class
    if not extra and wanted_extra:
        of_class = torch.zeros_like(positions[:, :1])
    old = math.isqrt(of_patches.shape[1])
    new = math.isqrt(wanted.shape[1] - wanted_extra)
    of_patches = resample(of_patches, old, (new, new))
    tensors["pos_embed"] = torch.cat([of_class[:, :wanted_extra], of_patches], 1)


def _prefix_length(positions: Tensor) -> int | None:
    """Return 0 or 1, the number of embeddings before those of a square grid; None for others."""
    for extra in (0, 1):
        patches = positions.shape[1] - extra
        if math.isqrt(patches) ** 2 == patches:
            return extra
    return None
