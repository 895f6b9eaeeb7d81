"""PSNR, SSIM and the best match, against closed forms."""

from __future__ import annotations

import pytest
import torch

from fedssl.analysis.audit.image_similarity import MAX_PSNR, best_match, psnr, ssim


def test_psnr_of_a_constant_difference() -> None:
    """A difference of 0.1 in every pixel is an MSE of 0.01: −10·log10(0.01) = 20 dB; 0.5: 6.02."""
    black = torch.zeros(2, 1, 4, 4)
    other = torch.stack([black[0] + 0.1, black[0] + 0.5])
    assert psnr(black, other).tolist() == pytest.approx([20.0, 6.0206], abs=1e-4)
    assert psnr(black, black).tolist() == [MAX_PSNR, MAX_PSNR]


def test_ssim_of_equal_and_of_inverted_images() -> None:
    """Equal images have 1; an inverted one has the covariance −variance in every window."""
    images = torch.rand(3, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    assert ssim(images, images).tolist() == pytest.approx([1.0] * 3, abs=1e-4)
    assert float(ssim(images, 1 - images).max()) < 0


def test_ssim_of_constant_images_is_its_luminance_term() -> None:
    """(2·0.2·0.6 + C1) / (0.2² + 0.6² + C1) with C1 = 1e-4; the structure term is C2 / C2."""
    dark = torch.full((1, 1, 8, 8), 0.2)
    bright = torch.full((1, 1, 8, 8), 0.6)
    assert float(ssim(dark, bright)) == pytest.approx((0.24 + 1e-4) / (0.4 + 1e-4), abs=1e-4)


def test_the_best_match_is_that_with_the_highest_psnr() -> None:
    images = torch.tensor([0.0, 0.5, 1.0]).view(3, 1, 1, 1).expand(3, 1, 2, 2)
    candidates = torch.tensor([0.9, 0.1]).view(2, 1, 1, 1).expand(2, 1, 2, 2)
    match = best_match(images, candidates)
    assert match.candidate.tolist()[::2] == [1, 0]
    assert match.psnr.tolist() == pytest.approx([20.0, 7.9588, 20.0], abs=1e-3)
