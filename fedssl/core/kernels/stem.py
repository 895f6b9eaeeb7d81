"""The first convolution of a network for small images, 3x3 over few channels, in bfloat16 on CUDA.

With three input channels a library's convolution pads them to eight and then multiplies mostly
zeros. Here each program gathers the neighbourhoods of its pixels directly from the float images and
multiplies once.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

PIXELS = 128  # of a program
WARPS = 4
PROGRAMS = 528  # that share the gradient of the weight


@triton.jit
def _neighbourhoods(x, m, M, H, W, sn, sc, sh, sw, C: tl.constexpr, K: tl.constexpr):
    """Return (len(m), K): the 3x3 neighbours of pixel m by row, column, channel, zero beyond the
    border; K ≥ 9·C. sn, sc, sh and sw are the strides of the images."""
    k = tl.arange(0, K)[None, :]
    n = (m // (H * W))[:, None]
    pixel = (m % (H * W))[:, None]
    h = pixel // W + k // (3 * C) - 1
    w = pixel % W + k // C % 3 - 1
    inside = (h >= 0) & (h < H) & (w >= 0) & (w < W) & (k < 9 * C) & (m < M)[:, None]
    at = x + n.to(tl.int64) * sn + k % C * sc + h * sh + w * sw
    return tl.load(at, mask=inside, other=0.0).to(tl.bfloat16)


@triton.jit
def _forward_kernel(
    x, weight, y, M, H, W, sn, sc, sh, sw,
    C: tl.constexpr, OUT: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the outputs (BLOCK, OUT) of this program's pixels."""
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    o = tl.arange(0, OUT)
    k = tl.arange(0, K)
    patches = _neighbourhoods(x, m, M, H, W, sn, sc, sh, sw, C, K)
    filters = tl.load(
        weight + o[None, :] * (9 * C) + k[:, None], mask=(k < 9 * C)[:, None], other=0.0
    )
    out = tl.dot(patches, filters)
    at = y + m[:, None].to(tl.int64) * OUT + o[None, :]
    tl.store(at, out.to(tl.bfloat16), mask=(m < M)[:, None])


@triton.jit
def _weight_kernel(
    x, dy, partial, M, pixels_per_program, H, W, sn, sc, sh, sw,
    C: tl.constexpr, OUT: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write this program's share (OUT, K) of the gradient, from `pixels_per_program` pixels."""
    o = tl.arange(0, OUT)
    k = tl.arange(0, K)
    total = tl.zeros((OUT, K), tl.float32)
    start = tl.program_id(0) * pixels_per_program
    for pixel in range(start, tl.minimum(start + pixels_per_program, M), BLOCK):
        m = pixel + tl.arange(0, BLOCK)
        patches = _neighbourhoods(x, m, M, H, W, sn, sc, sh, sw, C, K)
        at = dy + m[None, :].to(tl.int64) * OUT + o[:, None]
        total = tl.dot(tl.load(at, mask=(m < M)[None, :], other=0.0), patches, total)
    tl.store(partial + tl.program_id(0) * OUT * K + o[:, None] * K + k[None, :], total)


class _Stem(torch.autograd.Function):
    """The convolution, with a gradient of the weight only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        n, channels, height, width = x.shape
        pixels = n * height * width
        outputs = len(weight)
        y = torch.empty(
            (n, outputs, height, width),
            dtype=torch.bfloat16,
            device=x.device,
            memory_format=torch.channels_last,
        )
        flat = weight.permute(0, 2, 3, 1).contiguous()
        _forward_kernel[(triton.cdiv(pixels, PIXELS),)](
            x, flat, y, pixels, height, width, *x.stride(),
            C=channels, OUT=outputs, K=_padded(channels), BLOCK=PIXELS, num_warps=WARPS,
        )  # fmt: skip
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[None, Tensor]:
        (x,) = ctx.saved_tensors
        n, channels, height, width = x.shape
        pixels = n * height * width
        outputs = dy.shape[1]
        k = _padded(channels)
        pixels_per_program = triton.cdiv(triton.cdiv(pixels, PROGRAMS), PIXELS) * PIXELS
        programs = triton.cdiv(pixels, pixels_per_program)
        partial = torch.empty((programs, outputs, k), device=x.device)
        dy = dy.contiguous(memory_format=torch.channels_last)
        _weight_kernel[(programs,)](
            x, dy, partial, pixels, pixels_per_program, height, width, *x.stride(),
            C=channels, OUT=outputs, K=k, BLOCK=PIXELS, num_warps=WARPS,
        )  # fmt: skip
        grad = partial.sum(0)[:, : 9 * channels].to(torch.bfloat16)
        return None, grad.reshape(outputs, 3, 3, channels).permute(0, 3, 1, 2)


def _padded(channels: int) -> int:
    """Return the length of a neighbourhood, padded for tl.dot."""
    return max(16, int(triton.next_power_of_2(9 * channels)))


def suits(x: Tensor, weight: Tensor) -> bool:
    """True if `stem` supports these tensors: few channels in, a power of two out, weights already
    in bfloat16, and images that need no gradient."""
    outputs, channels = weight.shape[:2]
    is_power_of_two = outputs & (outputs - 1) == 0
    supported = channels <= 4 and 16 <= outputs <= 128 and is_power_of_two
    return supported and weight.dtype == torch.bfloat16 and x.is_cuda and not x.requires_grad


def stem(x: Tensor, weight: Tensor) -> Tensor:
    """Return a 3x3 convolution of stride 1 and padding 1: float or bfloat16 (n, C, h, w) to
    bfloat16 (n, O, h, w)."""
    out: Tensor = _Stem.apply(x, weight)
    return out
