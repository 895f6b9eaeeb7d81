"""Inputs of linear layers, read out of gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedssl.analysis.audit.analytic_inversion import (
    first_linear_layer,
    invert_linear,
    layer_inputs,
)
from fedssl.nets import CNN, ViTMini

pytestmark = pytest.mark.rows("C9")


def test_a_linear_layer_reveals_a_single_image() -> None:
    """∂L/∂W_i = δ_i·x and ∂L/∂b_i = δ_i: every row of the quotient is x."""
    torch.manual_seed(0)
    image = torch.rand(1, 3, 8, 8)
    layer = nn.Linear(3 * 8 * 8, 5)
    loss = layer(image.flatten(1)).square().sum()
    weight, bias = torch.autograd.grad(loss, [layer.weight, layer.bias])
    candidates = invert_linear(weight, bias)
    assert len(candidates) == 5
    assert float((candidates - image.flatten(1)).abs().max()) < 1e-4


def test_units_that_one_image_activates_reveal_it_in_a_batch() -> None:
    """Unit 0 is active for the first image only, unit 1 for the second: ReLU stops the other."""
    images = torch.tensor([[1.0, 0.0, 0.5], [0.0, 1.0, 0.25]])
    layer = nn.Linear(3, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0]]))
        layer.bias.zero_()
    loss = F.relu(layer(images)).sum()
    weight, bias = torch.autograd.grad(loss, [layer.weight, layer.bias])
    assert torch.allclose(invert_linear(weight, bias), images, atol=1e-6)


def test_a_unit_without_a_gradient_gives_no_candidate() -> None:
    weight = torch.tensor([[2.0, 4.0], [0.0, 0.0]])
    assert invert_linear(weight, torch.tensor([2.0, 0.0])).tolist() == [[1.0, 2.0]]
    assert len(invert_linear(weight, torch.zeros(2))) == 0


def test_patches_are_the_inputs_of_a_patch_embedding() -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 7, 4, 4)
    images = torch.rand(2, 3, 8, 8)
    rows = layer_inputs(layer, images)
    assert rows.shape == (8, 48)
    expected = layer(images).flatten(2).transpose(1, 2).flatten(0, 1)
    assert torch.allclose(rows @ layer.weight.flatten(1).T + layer.bias, expected, atol=1e-5)


@pytest.mark.parametrize(("backbone", "name"), [(ViTMini(), "patch_embed.proj"), (CNN(), None)])
def test_only_layers_that_are_linear_in_patches_apply(
    backbone: nn.Module, name: str | None
) -> None:
    found = first_linear_layer(backbone)
    assert (found[0] if found else None) == name
