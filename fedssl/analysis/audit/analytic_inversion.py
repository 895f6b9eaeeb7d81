"""Read inputs out of the gradients of a linear layer with a bias.

For y = W·x + b, row i of ∂L/∂W is Σ δ_i·x over the inputs of a batch and ∂L/∂b_i is Σ δ_i, so their
ratio is x exactly if only one input has a gradient in unit i, and else a mean of inputs (Phong et
al., "Privacy-preserving deep learning via additively homomorphic encryption", 2017; Geiping et al.,
2020, Proposition 3.1). Layers that cut an image into patches are linear in each patch.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

MIN_SHARE = 1e-4  # of the largest bias gradient; smaller ones give rounding errors


def first_linear_layer(backbone: nn.Module) -> tuple[str, nn.Linear | nn.Conv2d] | None:
    """Return the first layer and its name if it is linear in pixels or patches and has a bias."""
    for name, module in backbone.named_modules():
        if not isinstance(module, nn.Linear | nn.Conv2d):
            continue
        if module.bias is None:
            return None
        if isinstance(module, nn.Conv2d) and not _cuts_patches(module):
            return None
        return name, module
    return None


def _cuts_patches(layer: nn.Conv2d) -> bool:
    """True if the windows of a convolution do not overlap."""
    return layer.kernel_size == layer.stride and layer.padding == (0, 0) and layer.groups == 1


def layer_inputs(layer: nn.Linear | nn.Conv2d, images: Tensor) -> Tensor:
    """Return the rows (m, d) that a layer multiplies its weights with, from its input."""
    if isinstance(layer, nn.Linear):
        return images.flatten(0, -2)
    patches = F.unfold(images, layer.kernel_size, stride=layer.stride)
    return patches.transpose(1, 2).flatten(0, 1)


def invert_linear(weight: Tensor, bias: Tensor) -> Tensor:
    """Return candidates (m, d) for inputs, from gradients of a weight (k, d, …) and a bias (k,)."""
    largest = bias.abs().max()
    usable = bias.abs() > MIN_SHARE * largest
    if not bool(usable.any()):
        return weight.flatten(1)[:0]
    return weight.flatten(1)[usable] / bias[usable, None]
