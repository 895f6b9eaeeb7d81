"""Backbones of timm, by the name that `timm.create_model` takes.

They have random weights, no classifier, and the names of timm's tensors, so that an exported
backbone loads into `timm.create_model(NAME, num_classes=0)`. Transformers whose position embeddings
timm can resample take images of any size that their patches divide; their embeddings keep the size
that timm gives them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedssl.core.errors import ConfigError
from fedssl.core.suggestions import suggest
from fedssl.nets.adopted import AdoptedBackbone, adopt
from fedssl.nets.backbone import Backbone, PatchBackbone
from fedssl.nets.vit import resample

# Options with which a model takes images of any size; the first that a model accepts is used.
_ANY_SIZE: tuple[Mapping[str, bool], ...] = (
    {"dynamic_img_size": True},
    {"strict_img_size": False},
    {},
)


class TimmViT(AdoptedBackbone, PatchBackbone):
    """The patches of timm's VisionTransformer, of which MAE encodes only some.

    `forward_features` replaces timm's: the residual stream starts in float32 if the layers compute
    in bfloat16, as in fedssl's ViT, and the gradient of resampled positions is deterministic.
    """

    patch_embed: nn.Module
    cls_token: Tensor | None
    reg_token: Tensor | None
    pos_embed: Tensor | None
    no_embed_class: bool
    num_prefix_tokens: int
    norm_pre: nn.Module
    blocks: nn.Module
    norm: nn.Module

    def forward_features(self, images: Tensor, **unused: Any) -> Tensor:
        """Return prefix tokens and one token per patch, (n, p + t, dim)."""
        return TimmViT._encode(self, images, None)

    def tokens(self, images: Tensor, keep: Tensor | None = None) -> Tensor:
        """Return a token of the image and one token per patch, (n, 1 + t, dim).

        The first is the class token or, if the model has none, the mean of the patches' tokens.
        """
        x = self._encode(images, keep)
        patches = x[:, self.num_prefix_tokens :]
        first = x[:, :1]
        if self.cls_token is None:
            first = patches.mean(1, keepdim=True)
        return torch.cat([first, patches], 1)

    def _encode(self, images: Tensor, keep: Tensor | None) -> Tensor:
        """Return all tokens after the last norm; of the patches only those in `keep` (n, t)."""
        grid = self.cut(images.shape[2], images.shape[3])
        x = self.patch_embed(images).flatten(1, 2)
        prefix, positions = self._embeddings(grid, x.dtype)
        x = x.float() + positions
        if keep is not None:
            x = x.gather(1, keep[..., None].expand(-1, -1, x.shape[2]))
        if prefix is not None:
            x = torch.cat([prefix.expand(x.shape[0], -1, -1), x], 1)
        return self.norm(self.blocks(self.norm_pre(x)))  # type: ignore[no-any-return]

    def _embeddings(
        self, grid: tuple[int, int], dtype: torch.dtype
    ) -> tuple[Tensor | None, Tensor]:
        """Return the prefix tokens (1, p, dim), if any, and the positions of patches (1, t, dim).

        They are rounded to the precision of the layers, then added in float32.
        """
        assert self.pos_embed is not None
        with_position = 0 if self.no_embed_class else self.num_prefix_tokens
        side: int = self.patch_embed.grid_size[0]  # type: ignore[index, assignment]
        positions = resample(self.pos_embed[:, with_position:], side, grid).to(dtype).float()
        tokens = [token for token in (self.cls_token, self.reg_token) if token is not None]
        if not tokens:
            return None, positions
        prefix = torch.cat(tokens, 1).to(dtype)
        if with_position:
            prefix = prefix + self.pos_embed[:, :with_position].to(dtype)
        return prefix.float(), positions


def build_timm(name: str, channels: int) -> Backbone:
    """Return a model of timm with random weights, for images of this many channels."""
    timm = _import_timm()
    architecture, dot, _ = name.partition(".")
    if dot or not timm.is_model(name):
        hint = suggest(name, timm.list_models()) or "; timm.list_models() lists the names in Python"
        if timm.is_model(architecture):
            hint = ": leave out the tag after the dot, which names weights to download"
        raise ConfigError(f'timm {timm.__version__} has no model "{name}"{hint}')
    label = f"timm:{name}"
    model = _create(timm, name, channels)
    dim = getattr(model, "head_hidden_size", None) or model.num_features
    attributes = {"dim": dim, "channels": channels}
    if not _has_patches(timm, model):
        return adopt(model, label, attributes)
    attributes["patch"] = model.patch_embed.patch_size[0]
    attributes["heads"] = model.blocks[0].attn.num_heads
    return adopt(model, label, attributes, TimmViT, ("forward_features",))


def _import_timm() -> Any:
    """Return the module timm; raise ConfigError if it is missing or cannot be imported."""
    try:
        import timm
    except ModuleNotFoundError:
        raise ConfigError(
            'backbones of timm need timm: in a clone of fedssl, run pip install ".[vision]"'
        ) from None
    except Exception as problem:  # a torchvision that does not fit torch may raise anything
        raise ConfigError(
            f"timm cannot be imported ({problem}): `fedssl doctor` examines the installation"
        ) from None
    return timm


def _create(timm: Any, name: str, channels: int) -> Any:
    """Return timm's model, for images of any size if it can take them."""
    for options in _ANY_SIZE:
        try:
            return timm.create_model(
                name, pretrained=False, num_classes=0, in_chans=channels, **options
            )
        except TypeError as problem:
            if not any(option in str(problem) for option in options):
                raise ConfigError(
                    f"timm:{name} cannot be built for {channels} channels without a classifier: "
                    f"{problem}"
                ) from None
    raise AssertionError("the last options are empty")


def _has_patches(timm: Any, model: Any) -> bool:
    """True for a plain vision transformer with square patches and position embeddings."""
    if type(model) is not timm.models.vision_transformer.VisionTransformer:
        return False
    embed = model.patch_embed
    if type(embed) is not timm.layers.PatchEmbed or model.pos_embed is None:
        return False
    is_square = len(set(embed.patch_size)) == 1 and len(set(embed.grid_size)) == 1
    return is_square and hasattr(model.blocks[0], "attn")
