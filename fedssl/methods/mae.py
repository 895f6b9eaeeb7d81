"""MAE: draw the three quarters of an image that the encoder did not see.

He et al., "Masked Autoencoders Are Scalable Vision Learners", CVPR 2022.
Departures: a decoder of four blocks as wide as the encoder, as Dec-SSL trains it with ViT-tiny; no augmentation, as
there; pixels are not normalised patch by patch unless `norm_pix` says so; the encoder's positions begin as the paper's
sines and cosines and are trained, the decoder's stay so.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor, nn

from fedssl.errors import ConfigError
from fedssl.method import METHODS, Batch, Given, Method, MethodSettings, Output
from fedssl.nets import ViT
from fedssl.nets.vit import Block, initialise, sines
from fedssl.views import ViewGroup


def patchify(images: Tensor, patch: int) -> Tensor:
    """(n, C, H, W) to its patches (n, t, C·patch²), line by line."""
    n, channels, height, width = images.shape
    x = images.view(n, channels, height // patch, patch, width // patch, patch)
    return x.permute(0, 2, 4, 1, 3, 5).reshape(n, -1, channels * patch**2)


def masked_error(drawn: Tensor, patches: Tensor, norm_pix: bool) -> Tensor:
    """Masked patches as drawn and as they are, (…, m, k), to a 0-d loss.

    "Our loss function computes the mean squared error (MSE) between the reconstructed and original images in the pixel
    space. We compute the loss only on masked patches". With `norm_pix` a patch's own mean and variance are taken out.
    """
    if norm_pix:
        patches = (patches - patches.mean(-1, keepdim=True)) / (patches.var(-1, keepdim=True) + 1e-6).sqrt()
    return (drawn - patches).square().mean()


class Decoder(nn.Module):
    """Tokens (n, 1 + k, dim) of the class and of patches `keep` (n, k) to drawings (n, t, pixels) of all t patches."""

    positions: Tensor

    def __init__(self, dim: int, depth: int, heads: int, grid: int, pixels: int) -> None:
        super().__init__()
        self.embed = nn.Linear(dim, dim)
        self.mask_token = nn.Parameter(torch.empty(1, 1, dim))
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.draw = nn.Linear(dim, pixels)
        self.register_buffer("positions", sines(grid, dim), persistent=False)
        nn.init.normal_(self.mask_token, std=0.02)
        initialise(self)

    def forward(self, tokens: Tensor, keep: Tensor) -> Tensor:
        tokens = self.embed(tokens)
        n, _, dim = tokens.shape
        tokens, mask = tokens.float(), self.mask_token.to(tokens.dtype).float()
        every = mask.expand(n, len(self.positions), -1)
        every = every.scatter(1, keep[..., None].expand(-1, -1, dim), tokens[:, 1:]) + self.positions
        drawn: Tensor = self.draw(self.norm(self.blocks(torch.cat([tokens[:, :1], every], 1)))[:, 1:])
        return drawn


class MAESettings(MethodSettings):
    backbone: str = "vit_tiny"
    mask: float = Field(0.75, gt=0, lt=1)  # share of the patches that the encoder does not see
    depth: int = Field(4, gt=0, le=100)  # blocks of the decoder
    norm_pix: bool = False  # on: what is drawn is each patch less its mean, over its standard deviation


@METHODS.register("mae")
class MAE(Method):
    Settings = MAESettings
    settings: MAESettings
    backbone: ViT

    def __init__(self, settings: MAESettings, backbone: nn.Module, size: int) -> None:
        if not isinstance(backbone, ViT):
            raise ConfigError('method "mae" masks patches, so its backbone must be a vision transformer: vit_tiny, say')
        super().__init__(settings, backbone, size)
        grid, _ = backbone.cut(size, size)
        self.patches = grid**2
        self.seen = max(1, min(self.patches - 1, round(self.patches * (1 - settings.mask))))
        if self.patches < 2:
            raise ConfigError(f"an image of {size} pixels is one patch: nothing would be left of it behind a mask")
        pixels = backbone.channels * backbone.patch**2
        self.decoder = Decoder(self.features, settings.depth, backbone.heads, grid, pixels)

    @property
    def views(self) -> tuple[ViewGroup, ...]:
        return ()

    def draw(self, n: int, generator: torch.Generator) -> Mapping[str, Tensor]:
        """One number for each patch: the encoder sees those with the smallest."""
        return {"mask": torch.rand(n, self.patches, generator=generator, device=generator.device)}

    def forward(self, batch: Batch) -> Output:
        """h and z: the class token of what was seen (1, B, d); p and wanted: m masked patches, as drawn and as they
        are, (1, B, m, pixels)."""
        images = self.clean(batch.images)
        order = batch.draws["mask"].argsort(1)
        keep, masked = order[:, : self.seen], order[:, self.seen :]
        with self._autocast(images):
            tokens = self.backbone.tokens(images, keep)
            drawn = self.decoder(tokens, keep).float()
        h = tokens[:, 0].float()[None]
        drawn, patches = (
            x.gather(1, masked[..., None].expand(-1, -1, x.shape[2]))
            for x in (drawn, patchify(images, self.backbone.patch))
        )
        return Output(h, h, drawn[None], wanted=patches[None])

    def loss(self, out: Output, given: Given) -> Tensor:
        assert out.wanted is not None
        return masked_error(out.p, out.wanted, self.settings.norm_pix)
