"""Views of floats equal those of uint8 images, and pixels receive gradients."""

from __future__ import annotations

import pytest
import torch
from factories import random_pixels

from fedssl.analysis.audit.differentiable_views import make_float_views
from fedssl.views import Augment, ViewGroup, draw, make_views

STRONG = Augment(blur=0.5, gray=0.5, jitter_p=1.0)
WEAK = Augment(crop=(0.9, 1.0), jitter_p=0.0, gray=0.0, flip=0.0)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("augment", [STRONG, WEAK])
@pytest.mark.parametrize("normalised", [True, False])
def test_views_equal_those_of_training(channels: int, augment: Augment, normalised: bool) -> None:
    pixels = random_pixels(6, channels=channels, size=12)
    group = ViewGroup(2, 10, augment)
    uniforms = draw(12, torch.Generator().manual_seed(1), "cpu")
    mean = torch.full((channels,), 0.4) if normalised else None
    std = torch.full((channels,), 0.2) if normalised else None
    expected = make_views(group, pixels, uniforms, mean, std)
    images = (pixels.float() / 255).requires_grad_(True)
    made = make_float_views(group, images, uniforms, mean, std)
    assert torch.allclose(made, expected, atol=1e-4)
    (gradient,) = torch.autograd.grad(made.square().sum(), images)
    assert gradient.isfinite().all()
    assert float(gradient.abs().amax()) > 0
