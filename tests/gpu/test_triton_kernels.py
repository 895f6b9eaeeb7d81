"""The Triton kernels on CUDA agree with float64."""

from __future__ import annotations

import pytest
import torch
from gpu_trainers import CUDA
from torch import Tensor

from fedssl.nets.norm import BatchNorm2d
from fedssl.training.optimizers import EmaTarget, FusedSGD

pytestmark = pytest.mark.usefixtures("exact_arithmetic")


def channels_last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


def relative_error(measured: Tensor, expected: Tensor) -> float:
    return float((measured.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(256, 64, 32, 32), (256, 512, 4, 4), (6, 70, 5, 5)])
def test_normalisation(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """The fused layer agrees with the plain one in float64; two calls give the same bits.

    The tolerance is large because a ReLU's mask changes where its input is almost zero.
    """
    x, skip, dy, dy2 = (torch.randn(shape, device=CUDA, dtype=dtype) + 1 for _ in range(4))

    def outputs(fused: bool, kind: torch.dtype) -> list[Tensor]:
        """Return two outputs, the gradients and the running statistics."""
        layer = BatchNorm2d(shape[1], relu=True).to(CUDA)
        layer.groups = 2
        layer.fused = fused
        if not fused:
            layer = layer.to(torch.float64)
        inputs = [channels_last(tensor.to(kind)).requires_grad_() for tensor in (x, skip)]
        y, y2 = layer.twice(*inputs)
        total = (y * dy).sum() + (y2 * dy2).sum()
        gradients = torch.autograd.grad(total, [*inputs, layer.weight, layer.bias])
        return [y, *gradients, layer.running_mean, layer.running_var]

    first = outputs(True, dtype)
    second = outputs(True, dtype)
    expected = outputs(False, torch.float64)
    tolerance = 1e-3 if dtype == torch.float32 else 2e-2
    for one, other, reference in zip(first, second, expected, strict=True):
        assert torch.equal(one, other)
        assert relative_error(one, reference) < tolerance


@pytest.mark.parametrize("low", [True, False])
@pytest.mark.parametrize(("start", "size"), [(0, 90_000), (20_005, 60_000), (30_000, 70_000)])
def test_update(start: int, size: int, low: bool) -> None:
    """Three steps of SGD agree with float64.

    The weights, their momentum and a target, which follows a slice of the weights, agree to the
    precision of float32; their bfloat16 copies are exact. One gradient is a separate tensor in
    bfloat16, which may extend beyond the end of the slice.
    """
    n, lr, decay, momentum, share = 100_000, 0.1, 0.01, 0.9, 0.25
    row = torch.randn(n, device=CUDA)
    target = torch.randn(size, device=CUDA)
    optimizer = FusedSGD(row, decay, momentum)
    optimizer.lr.fill_(lr)
    optimizer.bf16_copy = row.bfloat16() if low else None
    optimizer.ema_target = EmaTarget(target, target.bfloat16() if low else None, share, start)

    expected_row = row.double()
    expected_target = target.double()
    expected_buffer = torch.zeros(n, device=CUDA, dtype=torch.float64)
    for _ in range(3):
        gradient = torch.randn(n, device=CUDA)
        separate = torch.randn(30_000, device=CUDA).bfloat16()
        optimizer.step(gradient, {55_000: separate})
        whole = torch.cat([gradient[:55_000], separate.float(), gradient[85_000:]]).double()
        expected_buffer = momentum * expected_buffer + whole + decay * expected_row
        expected_row = expected_row - lr * expected_buffer
        slice_of_row = expected_row[start : start + size]
        expected_target = expected_target + share * (slice_of_row - expected_target)

    assert relative_error(row, expected_row) < 1e-6
    assert relative_error(optimizer.buffer, expected_buffer) < 1e-6
    assert relative_error(target, expected_target) < 1e-6
    if optimizer.bf16_copy is not None and optimizer.ema_target.bf16_copy is not None:
        assert torch.equal(optimizer.bf16_copy, row.bfloat16())
        assert torch.equal(optimizer.ema_target.bf16_copy, target.bfloat16())


def test_stem() -> None:
    """The first convolution and its weights' gradient agree with float64."""
    from fedssl.core.kernels.stem import stem  # needs Triton, which is not installed everywhere

    images = torch.rand(64, 3, 32, 32, device=CUDA)
    weight = channels_last(torch.randn(64, 3, 3, 3, device=CUDA)).bfloat16().requires_grad_()
    dy = channels_last(torch.randn(64, 64, 32, 32, device=CUDA).bfloat16())
    y = stem(images, weight)
    (gradient,) = torch.autograd.grad(y, weight, dy)

    reference = weight.detach().double().requires_grad_()
    expected = torch.nn.functional.conv2d(images.bfloat16().double(), reference, padding=1)
    (expected_gradient,) = torch.autograd.grad(expected, reference, dy.double())
    assert relative_error(y, expected) < 4e-3
    assert relative_error(gradient, expected_gradient) < 4e-3
