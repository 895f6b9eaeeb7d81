"""Gradient matching, and what clipping and noise change."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedssl.analysis.audit.gradient_inversion import (
    Observation,
    Observe,
    reconstruct,
    total_variation,
)
from fedssl.analysis.audit.image_similarity import psnr
from fedssl.analysis.audit.protection import clip_and_noise

pytestmark = pytest.mark.rows("C9")

SIDE = 6


def _smooth_image() -> Tensor:
    """Return an image (1, 1, SIDE, SIDE) whose left half is dark and whose right half is bright."""
    image = torch.full((1, 1, SIDE, SIDE), 0.2)
    image[..., SIDE // 2 :] = 0.8
    return image


def _observe() -> Observe:
    """Return the gradient of a small network with one hidden layer."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 16), nn.Tanh(), nn.Linear(16, 4))
    weights = list(network.parameters())

    def observe(images: Tensor) -> Observation:
        loss = (network(images) - 1).square().sum()
        gradients = torch.autograd.grad(loss, weights, create_graph=images.requires_grad)
        return Observation(list(gradients), {})

    return observe


def _attacked_psnr(noise: float) -> float:
    """Return the PSNR of a reconstruction from a clipped gradient with noise."""
    image = _smooth_image()
    observe = _observe()
    stream = torch.Generator().manual_seed(1)
    gradients = clip_and_noise(observe(image).gradients, 1.0, noise, stream)
    start = torch.full_like(image, 0.5)
    found = reconstruct(observe, Observation(gradients, {}), start, iterations=100)
    return float(psnr(image, found))


def test_noise_lowers_the_psnr_of_a_reconstruction() -> None:
    """Clipping alone keeps the direction, which is all that the attack uses."""
    exact = _attacked_psnr(0.0)
    noisy = _attacked_psnr(1.0)
    guess = float(psnr(_smooth_image(), torch.full((1, 1, SIDE, SIDE), 0.5)))
    assert guess == pytest.approx(10.458, abs=1e-3)  # −10·log10(0.3²)
    assert exact > 30
    assert noisy < guess


def test_total_variation_by_hand() -> None:
    """Rows are constant; of 5 horizontal steps one is 0.6."""
    assert float(total_variation(_smooth_image())) == pytest.approx(0.6 / 5)


def test_clipping_scales_to_the_bound() -> None:
    """The norm of (3, 4) is 5; a bound above it changes nothing."""
    stream = torch.Generator()
    tensors = [torch.tensor([3.0]), torch.tensor([4.0])]
    clipped = clip_and_noise(tensors, 1.0, 0.0, stream)
    assert torch.cat(clipped).tolist() == pytest.approx([0.6, 0.8])
    assert torch.cat(clip_and_noise(tensors, 10.0, 0.0, stream)).tolist() == [3.0, 4.0]


def test_the_deviation_of_the_noise() -> None:
    """It is relative to the bound, or without clipping to the norm of the update."""
    stream = torch.Generator().manual_seed(0)
    zeros = [torch.zeros(20_000)]
    (noise,) = clip_and_noise(zeros, 2.0, 0.5, stream)
    assert float(noise.std()) == pytest.approx(1.0, rel=0.03)
    ones = [torch.full((10_000,), 0.01)]  # of norm 1
    (noise,) = clip_and_noise(ones, None, 0.5, stream)
    assert float((noise - 0.01).std()) == pytest.approx(0.5, rel=0.03)
