"""MAE: reconstruct the three quarters of an image that the encoder did not see.

He et al., "Masked Autoencoders Are Scalable Vision Learners", CVPR 2022.
Departures: a decoder of four blocks as wide as the encoder, as Dec-SSL trains it with ViT-tiny; no
augmentation, as there; pixels are not normalised patch by patch unless `norm_pix` is set; the
encoder's positions begin as the paper's sines and cosines and are trained, the decoder's are fixed.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor, nn

from fedssl.core.errors import ConfigError
from fedssl.method import METHODS, Batch, Constants, Method, MethodSettings, Output
from fedssl.nets import PatchBackbone
from fedssl.nets.vit import Block, initialise, sines
from fedssl.views import ViewGroup


def patchify(images: Tensor, patch: int) -> Tensor:
    """Return the patches (n, t, C·patch²) of images (n, C, H, W), line by line."""
    n, channels, height, width = images.shape
    x = images.view(n, channels, height // patch, patch, width // patch, patch)
    return x.permute(0, 2, 4, 1, 3, 5).reshape(n, -1, channels * patch**2)


def masked_mse(reconstructed: Tensor, patches: Tensor, norm_pix: bool) -> Tensor:
    """Return a 0-d loss of the masked patches (…, m, k) as reconstructed and in the image.

    "Our loss function computes the mean squared error (MSE) between the reconstructed and original
    images in the pixel space. We compute the loss only on masked patches". With `norm_pix` each
    patch is normalised by its mean and variance.
    """
    if norm_pix:
        centred = patches - patches.mean(-1, keepdim=True)
        patches = centred / (patches.var(-1, keepdim=True) + 1e-6).sqrt()
    return (reconstructed - patches).square().mean()


class Decoder(nn.Module):
    """Reconstruct all t patches (n, t, pixels) from the tokens (n, 1 + k, dim) of the class and of
    the patches `keep` (n, k)."""

    positions: Tensor

    def __init__(self, dim: int, depth: int, heads: int, grid: int, pixels: int) -> None:
        super().__init__()
        self.embed = nn.Linear(dim, dim)
        self.mask_token = nn.Parameter(torch.empty(1, 1, dim))
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.draw = nn.Linear(dim, pixels)  # the name is part of checkpoints
        self.register_buffer("positions", sines(grid, dim), persistent=False)
        nn.init.normal_(self.mask_token, std=0.02)
        initialise(self)

    def forward(self, tokens: Tensor, keep: Tensor) -> Tensor:
        """Return the reconstructed patches."""
        tokens = self.embed(tokens)
        n, _, dim = tokens.shape
        dtype = tokens.dtype
        tokens = tokens.float()
        mask = self.mask_token.to(dtype).float()
        every = mask.expand(n, len(self.positions), -1)
        every = every.scatter(1, keep[..., None].expand(-1, -1, dim), tokens[:, 1:])
        every = every + self.positions
        x = self.norm(self.blocks(torch.cat([tokens[:, :1], every], 1)))
        patches: Tensor = self.draw(x[:, 1:])
        return patches


class MAESettings(MethodSettings):
    """Settings of MAE."""

    backbone: str = "vit_tiny"
    mask: float = Field(0.75, gt=0, lt=1)  # share of the patches that the encoder does not see
    depth: int = Field(4, gt=0, le=100)  # blocks of the decoder
    norm_pix: bool = False  # on: reconstruct each patch less its mean, over its standard deviation


@METHODS.register("mae")
class MAE(Method):
    """MAE: reconstruct the three quarters of an image that the encoder did not see."""

    Settings = MAESettings
    settings: MAESettings
    backbone: PatchBackbone

    def __init__(self, settings: MAESettings, backbone: nn.Module, size: int) -> None:
        if not isinstance(backbone, PatchBackbone):
            raise ConfigError(
                'method "mae" masks patches, so its backbone must be a vision transformer '
                "such as vit_tiny"
            )
        super().__init__(settings, backbone, size)
        grid, _ = backbone.cut(size, size)
        self.patches = grid**2
        seen = round(self.patches * (1 - settings.mask))
        self.seen = max(1, min(self.patches - 1, seen))
        if self.patches < 2:
            raise ConfigError(
                f'method "mae" needs at least two patches in an image, but images of {size} pixels '
                "have only one: use larger images"
            )
        pixels = backbone.channels * backbone.patch**2
        self.decoder = Decoder(
            self.features, settings.depth, backbone.heads, grid=grid, pixels=pixels
        )

    @property
    def views(self) -> tuple[ViewGroup, ...]:
        """No views: the images are encoded without augmentation."""
        return ()

    def draw(self, n: int, generator: torch.Generator) -> Mapping[str, Tensor]:
        """Draw a number for each patch: the encoder sees those with the smallest."""
        return {"mask": torch.rand(n, self.patches, generator=generator, device=generator.device)}

    def forward(self, batch: Batch) -> Output:
        """Return as h and z the class token of the visible patches (1, B, d), as p and `expected`
        the m masked patches, reconstructed and in the image, (1, B, m, pixels)."""
        images = self.clean(batch.images)
        order = batch.draws["mask"].argsort(1)
        keep = order[:, : self.seen]
        masked = order[:, self.seen :]
        with self._autocast(images):
            tokens = self.backbone.tokens(images, keep)
            reconstructed = self.decoder(tokens, keep).float()
        h = tokens[:, 0].float()[None]
        patches = patchify(images, self.backbone.patch)
        index = masked[..., None].expand(-1, -1, patches.shape[2])
        p = reconstructed.gather(1, index)
        expected = patches.gather(1, index)
        return Output(h, h, p[None], expected=expected[None])

    def loss(self, out: Output, constants: Constants) -> Tensor:
        """Return the mean squared error over the masked patches."""
        assert out.expected is not None
        return masked_mse(out.p, out.expected, self.settings.norm_pix)
