"""Vision transformers without their last layer: ViT-tiny, and a smaller one for a CPU.

Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021; the tiny width is DeiT's (Touvron et
al., 2021). Keys of the state_dict and numbers are timm's: `vit_tiny_patch16_224` with
`num_classes=0` is `vit_tiny` with the ImageNet stem. Features are the class token after the last
norm, as timm's. Initial weights are those of MAE and MoCo v3, with which a short training reaches
better results than with timm's normal of std 0.02: Xavier's, and positions that start as sines and
cosines.

A backbone is built before the size of its images is known, so positions are learned on the grid of
a nominal size, 32 pixels with the CIFAR stem and 224 with the other, and resampled for the grid of
the actual images (bicubic with antialiasing, as timm does when it loads weights for another size).
One file of weights then serves views, crops and images of any size.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedssl.nets.backbone import BACKBONES, PatchBackbone, Stem

# Pixels a side for which positions are learned.
NOMINAL: dict[Stem, int] = {"cifar": 32, "imagenet": 224}


class Attention(nn.Module):
    """Multi-head self-attention: tokens (n, t, dim) to (n, t, dim)."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens after attention."""
        n, t, dim = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, dim)
        return self.proj(mixed)  # type: ignore[no-any-return]


class MLP(nn.Module):
    """Two linear layers applied to each token, with four times its width between them."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens of the same shape."""
        return self.fc2(F.gelu(self.fc1(x)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention, then the MLP, each after a norm and with a shortcut.

    Shapes: (n, t, dim) to (n, t, dim).
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = MLP(dim)

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens of the same shape."""
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class Patches(nn.Module):
    """Images (n, channels, h, w) to tokens (n, h·w/patch², dim), row by row."""

    def __init__(self, channels: int, dim: int, patch: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(channels, dim, patch, patch)

    def forward(self, images: Tensor) -> Tensor:
        """Return one token per patch."""
        return self.proj(images).flatten(2).transpose(1, 2)  # type: ignore[no-any-return]


def initialise(module: nn.Module) -> None:
    """Initialise linear layers as MAE and MoCo v3 do: Xavier's uniform weights, biases 0."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)


def sines(grid: int, dim: int) -> Tensor:
    """Return positions (grid², dim) of a square grid.

    A quarter of the numbers each is the sine and cosine of row and column. They are computed on the
    CPU, so that they do not depend on the device on which a network is built.
    """
    rates = 10_000.0 ** -(torch.arange(dim // 4, device="cpu") / (dim // 4))
    angles = torch.arange(grid, device="cpu")[:, None] * rates  # (grid, dim/4)
    side = torch.cat([angles.sin(), angles.cos()], 1)  # (grid, dim/2)
    down = side[:, None].expand(-1, grid, -1)
    across = side[None].expand(grid, -1, -1)
    return torch.cat([across, down], 2).reshape(grid**2, -1)


def _constant(matrix: Tensor) -> Tensor:
    """Return a matrix that depends on sizes alone; a constant for the ONNX exporter.

    ONNX has no bicubic interpolation with antialias.
    """
    if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return torch.tensor(matrix.tolist(), device=matrix.device)
    return matrix


def resample(positions: Tensor, old: int, grid: tuple[int, int]) -> Tensor:
    """Resample the embeddings (1, old·old, dim) of a square grid to another (1, h·w, dim).

    The embeddings are multiplied by one matrix for each side.
    """
    if grid == (old, old):
        return positions
    # Not F.interpolate of the embeddings: its backward pass on CUDA has no deterministic version.
    height, width = grid
    identity = torch.eye(old, device=positions.device)[None, None]
    rows = _constant(F.interpolate(identity, (height, old), mode="bicubic", antialias=True)[0, 0])
    cols = _constant(F.interpolate(identity, (width, old), mode="bicubic", antialias=True)[0, 0])
    square = positions.float().view(old, old, -1)
    resampled = torch.einsum("hi,wj,ijd->hwd", rows, cols, square)
    return resampled.reshape(1, height * width, -1)


class ViT(PatchBackbone):
    """Maps (n, channels, h, w) to the class token (n, dim).

    h and w must be multiples of the patch's side.
    """

    width: ClassVar[int]
    depth: ClassVar[int]
    patches: ClassVar[dict[Stem, int]]  # side of a patch, in pixels

    def __init__(self, channels: int = 3, stem: Stem = "cifar") -> None:
        super().__init__()
        self.dim = self.width
        self.patch = self.patches[stem]
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

    def tokens(self, images: Tensor, keep: Tensor | None = None) -> Tensor:
        """Return the class token and one token per patch, (n, 1 + t, dim).

        If `keep` (n, t) is given, only the patches with these indices enter.
        """
        grid = self.cut(images.shape[2], images.shape[3])
        x = self.patch_embed(images)
        # Round to the precision of the layers, then sum in float32.
        first = (self.cls_token.to(x.dtype) + self.pos_embed[:, :1].to(x.dtype)).float()
        positions = resample(self.pos_embed[:, 1:], self.grid, grid)
        x = x.float() + positions.to(x.dtype).float()
        if keep is not None:
            x = x.gather(1, keep[..., None].expand(-1, -1, self.dim))
        sequence = torch.cat([first.expand(x.shape[0], -1, -1), x], 1)
        return self.norm(self.blocks(sequence))  # type: ignore[no-any-return]

    def forward(self, images: Tensor) -> Tensor:
        """Return the class token (n, dim)."""
        return self.tokens(images)[:, 0]


@BACKBONES.register("vit_tiny")
class ViTTiny(ViT):
    """ViT-tiny: (n, channels, h, w) to (n, 192), with patches of 2 (or 16) pixels a side.

    The first number is for the CIFAR stem, the second for the ImageNet stem.
    """

    width = 192
    depth = 12
    heads = 3
    patches: ClassVar[dict[Stem, int]] = {"cifar": 2, "imagenet": 16}


@BACKBONES.register("vit_mini")
class ViTMini(ViT):
    """Four blocks to try an experiment on a CPU: to (n, 64), patches of 4 (or 16) pixels a side."""

    width = 64
    depth = 4
    heads = 4
    patches: ClassVar[dict[Stem, int]] = {"cifar": 4, "imagenet": 16}
