"""Vision transformers without their last layer: ViT-tiny, and a smaller one for a CPU.

Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021; the tiny width is DeiT's (Touvron et al., 2021).
Keys of the state_dict and numbers are timm's: `vit_tiny_patch16_224` with `num_classes=0` is `vit_tiny` with the
ImageNet stem. Features are the class token after the last norm, as timm's. First weights are those of MAE and MoCo v3,
with which a short training gets farther than with timm's normal of std 0.02: Xavier's, and positions that begin as
sines and cosines.

A backbone is built before anybody knows the size of its images, so positions are learned on the grid of a nominal
size, 32 pixels with the CIFAR stem and 224 with the other, and resampled for the grid of the images that come
(bicubic with antialiasing, as timm does when it loads weights made for another size). One file of weights then
serves views, crops and images of any size.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedssl.errors import ConfigError
from fedssl.nets.backbone import BACKBONES, Backbone, Stem

NOMINAL: dict[Stem, int] = {"cifar": 32, "imagenet": 224}  # pixels a side that positions are learned for


class Attention(nn.Module):
    """Tokens (n, t, dim) to (n, t, dim), each a mixture of all."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        n, t, dim = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, dim))  # type: ignore[no-any-return]


class MLP(nn.Module):
    """Each token by itself, through four times its width."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention, then the MLP, each beside a shortcut and after a norm: (n, t, dim) to (n, t, dim)."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(dim, eps=1e-6), Attention(dim, heads)
        self.norm2, self.mlp = nn.LayerNorm(dim, eps=1e-6), MLP(dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class Patches(nn.Module):
    """Images (n, channels, h, w) to a row of tokens (n, h·w/patch², dim), line by line."""

    def __init__(self, channels: int, dim: int, patch: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(channels, dim, patch, patch)

    def forward(self, images: Tensor) -> Tensor:
        return self.proj(images).flatten(2).transpose(1, 2)  # type: ignore[no-any-return]


def initialise(module: nn.Module) -> None:
    """Linear layers as MAE's and MoCo v3's: weights from Xavier's uniform, biases 0."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)


def sines(grid: int, dim: int) -> Tensor:
    """Positions (grid², dim) of a square grid: a quarter of the numbers each for sine and cosine of row and column.
    They are computed on the CPU, the same wherever a network is built."""
    rates = 10_000.0 ** -(torch.arange(dim // 4, device="cpu") / (dim // 4))
    angles = torch.arange(grid, device="cpu")[:, None] * rates  # (grid, dim/4)
    side = torch.cat([angles.sin(), angles.cos()], 1)  # (grid, dim/2)
    down, across = side[:, None].expand(-1, grid, -1), side[None].expand(grid, -1, -1)
    return torch.cat([across, down], 2).reshape(grid**2, -1)


def resample(positions: Tensor, old: int, grid: tuple[int, int]) -> Tensor:
    """Embeddings (1, old·old, dim) of a square grid to those (1, h·w, dim) of another: one matrix for each side."""
    if grid == (old, old):
        return positions
    # Not F.interpolate of the embeddings: its backward pass on CUDA has no deterministic version.
    field = torch.eye(old, device=positions.device)[None, None]
    rows, cols = (F.interpolate(field, (new, old), mode="bicubic", antialias=True)[0, 0] for new in grid)
    made = torch.einsum("hi,wj,ijd->hwd", rows, cols, positions.float().view(old, old, -1))
    return made.reshape(1, grid[0] * grid[1], -1)


class ViT(Backbone):
    """(n, channels, h, w) to (n, dim), the class token; h and w are multiples of the patch's side."""

    width: ClassVar[int]
    depth: ClassVar[int]
    heads: ClassVar[int]
    patches: ClassVar[dict[Stem, int]]  # side of a patch, in pixels

    def __init__(self, channels: int = 3, stem: Stem = "cifar") -> None:
        super().__init__()
        self.dim, self.patch = self.width, self.patches[stem]
        self.grid = NOMINAL[stem] // self.patch
        self.cls_token = nn.Parameter(torch.empty(1, 1, self.dim))
        self.pos_embed = nn.Parameter(torch.empty(1, 1 + self.grid**2, self.dim))
        self.patch_embed = Patches(channels, self.dim, self.patch)
        self.blocks = nn.Sequential(*(Block(self.dim, self.heads) for _ in range(self.depth)))
        self.norm = nn.LayerNorm(self.dim, eps=1e-6)
        nn.init.normal_(self.cls_token, std=0.02)
        with torch.no_grad():
            self.pos_embed.zero_()[0, 1:] = sines(self.grid, self.dim)
        initialise(self.blocks)

    def cut(self, height: int, width: int) -> tuple[int, int]:
        """The grid of patches in an image of this size."""
        if height % self.patch or width % self.patch:
            raise ConfigError(
                f"this vision transformer cuts images into patches of {self.patch} x {self.patch} pixels, which "
                f"{height} x {width} is no multiple of"
            )
        return height // self.patch, width // self.patch

    def tokens(self, images: Tensor, keep: Tensor | None = None) -> Tensor:
        """The class token and one for each patch, (n, 1 + t, dim); `keep` (n, t): the only patches that enter."""
        grid = self.cut(images.shape[2], images.shape[3])
        x = self.patch_embed(images)
        # In the precision that layers compute in, and then summed up in float32.
        first = (self.cls_token.to(x.dtype) + self.pos_embed[:, :1].to(x.dtype)).float()
        x = x.float() + resample(self.pos_embed[:, 1:], self.grid, grid).to(x.dtype).float()
        if keep is not None:
            x = x.gather(1, keep[..., None].expand(-1, -1, self.dim))
        return self.norm(self.blocks(torch.cat([first.expand(len(x), -1, -1), x], 1)))  # type: ignore[no-any-return]

    def forward(self, images: Tensor) -> Tensor:
        return self.tokens(images)[:, 0]


@BACKBONES.register("vit_tiny")
class ViTTiny(ViT):
    """ViT-tiny: (n, channels, h, w) to (n, 192); patches of 2 pixels a side with the CIFAR stem, 16 with the other."""

    width, depth, heads = 192, 12, 3
    patches: ClassVar[dict[Stem, int]] = {"cifar": 2, "imagenet": 16}


@BACKBONES.register("vit_mini")
class ViTMini(ViT):
    """Four blocks and patches of 4 (or 16) pixels a side, to try an experiment on a CPU: to (n, 64)."""

    width, depth, heads = 64, 4, 4
    patches: ClassVar[dict[Stem, int]] = {"cifar": 4, "imagenet": 16}
