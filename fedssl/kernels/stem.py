"""The first convolution of a network for small images, 3x3 over a few channels, in bfloat16 for CUDA.

With three input channels a library's convolution first pads them to eight and then computes mostly zeros. Here each
program gathers its pixels' neighbourhoods straight from the float images and multiplies once.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

PIXELS, WARPS = 128, 4  # of a program
PROGRAMS = 528  # that share the weight's gradient


@triton.jit
def _neighbourhoods(x, m, M, H, W, sn, sc, sh, sw, C: tl.constexpr, K: tl.constexpr):
    """(len(m), K): pixel m's 3x3 neighbours by row, column, channel, zero beyond the border; K ≥ 9·C."""
    k = tl.arange(0, K)[None, :]
    n, rest = (m // (H * W))[:, None], (m % (H * W))[:, None]
    h, w = rest // W + k // (3 * C) - 1, rest % W + k // C % 3 - 1
    inside = (h >= 0) & (h < H) & (w >= 0) & (w < W) & (k < 9 * C) & (m < M)[:, None]
    at = x + n.to(tl.int64) * sn + k % C * sc + h * sh + w * sw
    return tl.load(at, mask=inside, other=0.0).to(tl.bfloat16)


@triton.jit
def _forward_kernel(
    x, weight, y, M, H, W, sn, sc, sh, sw, C: tl.constexpr, OUT: tl.constexpr, K: tl.constexpr, BM: tl.constexpr
):
    m, o, k = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, OUT), tl.arange(0, K)
    patches = _neighbourhoods(x, m, M, H, W, sn, sc, sh, sw, C, K)
    filters = tl.load(weight + o[None, :] * (9 * C) + k[:, None], mask=(k < 9 * C)[:, None], other=0.0)
    out = tl.dot(patches, filters)
    tl.store(y + m[:, None].to(tl.int64) * OUT + o[None, :], out.to(tl.bfloat16), mask=(m < M)[:, None])


@triton.jit
def _weight_kernel(
    x, dy, partial, M, per, H, W, sn, sc, sh, sw, C: tl.constexpr, OUT: tl.constexpr, K: tl.constexpr, BM: tl.constexpr
):
    """This program's share (OUT, K) of the gradient, from `per` pixels."""
    o, k = tl.arange(0, OUT), tl.arange(0, K)
    total = tl.zeros((OUT, K), tl.float32)
    start = tl.program_id(0) * per
    for pixel in range(start, tl.minimum(start + per, M), BM):
        m = pixel + tl.arange(0, BM)
        patches = _neighbourhoods(x, m, M, H, W, sn, sc, sh, sw, C, K)
        at = dy + m[None, :].to(tl.int64) * OUT + o[:, None]
        total = tl.dot(tl.load(at, mask=(m < M)[None, :], other=0.0), patches, total)
    tl.store(partial + tl.program_id(0) * OUT * K + o[:, None] * K + k[None, :], total)


class _Stem(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        n, channels, height, width = x.shape
        rows, outputs, k = n * height * width, len(weight), _padded(channels)
        y = torch.empty(
            (n, outputs, height, width), dtype=torch.bfloat16, device=x.device, memory_format=torch.channels_last
        )
        flat = weight.permute(0, 2, 3, 1).contiguous()
        _forward_kernel[(triton.cdiv(rows, PIXELS),)](
            x, flat, y, rows, height, width, *x.stride(), channels, outputs, k, PIXELS, num_warps=WARPS
        )
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[None, Tensor]:
        (x,) = ctx.saved_tensors
        n, channels, height, width = x.shape
        rows, outputs, k = n * height * width, dy.shape[1], _padded(channels)
        per = triton.cdiv(triton.cdiv(rows, PROGRAMS), PIXELS) * PIXELS
        programs = triton.cdiv(rows, per)
        partial = torch.empty((programs, outputs, k), device=x.device)
        _weight_kernel[(programs,)](
            x, dy.contiguous(memory_format=torch.channels_last), partial, rows, per, height, width,
            *x.stride(), channels, outputs, k, PIXELS, num_warps=WARPS,
        )  # fmt: skip
        grad = partial.sum(0)[:, : 9 * channels].to(torch.bfloat16)
        return None, grad.reshape(outputs, 3, 3, channels).permute(0, 3, 1, 2)


def _padded(channels: int) -> int:
    return max(16, int(triton.next_power_of_2(9 * channels)))


def suits(x: Tensor, weight: Tensor) -> bool:
    """Few channels in, a power of two out, weights in bfloat16 already, and nobody wants a gradient of the images."""
    outputs, channels = weight.shape[:2]
    few = channels <= 4 and 16 <= outputs <= 128 and outputs & (outputs - 1) == 0
    return few and weight.dtype == torch.bfloat16 and x.is_cuda and not x.requires_grad


def stem(x: Tensor, weight: Tensor) -> Tensor:
    """A 3x3 convolution of stride 1 and padding 1: float or bfloat16 (n, C, h, w) to bfloat16 (n, O, h, w)."""
    out: Tensor = _Stem.apply(x, weight)
    return out
