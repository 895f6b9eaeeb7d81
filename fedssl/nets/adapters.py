"""LoRA: train a low-rank change of pretrained layers, whose own weights stay frozen.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022: the weight of a layer is
W = W0 + (α/r)·B·A with A (r, inputs) and B (outputs, r), where W0 is frozen. B begins as zero, so
the first model is the pretrained one. A convolution's A is a convolution to r channels with the
layer's kernel, stride and padding, and its B is a 1x1 convolution.
Departures: A is drawn as in the authors' code (uniform, He et al.'s bound for a slope of √5), not
from a Gaussian; normalisation layers are trained too; no dropout.

Frozen weights are buffers that are not in the state_dict. So a model's rows, and with them uploads,
checkpoints and the memory of clients, have only what is trained. Frozen are all parameters but
those of normalisation layers: also biases, positions, tokens and the first convolution.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import TypeAlias

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from fedssl.core.errors import ConfigError
from fedssl.core.settings import Settings

A = "lora_A"  # names of the factors in a layer, those of the authors' code
B = "lora_B"


class AdapterSettings(Settings):
    """Settings of low-rank adapters."""

    rank: int = Field(ge=1, le=1024)  # the paper's r, such as 8
    alpha: float = Field(16.0, gt=0)  # the paper's α: the change is scaled by alpha / rank
    # names of layers to adapt, such as qkv; empty: all linear layers and convolutions but the first
    # convolution
    layers: tuple[str, ...] = ()
    # SHA-256 of the file method.init, whose weights stay frozen; filled in when a run starts
    sha256: str | None = Field(None, pattern="^[0-9a-f]{64}$")

    @property
    def scale(self) -> float:
        """The factor α/r of the product B·A."""
        return self.alpha / self.rank


class AdaptedLinear(nn.Linear):
    """A linear layer with frozen weights and a trained low-rank change."""

    weight: Tensor
    bias: Tensor | None  # type: ignore[assignment]

    def __init__(self, layer: nn.Linear, settings: AdapterSettings) -> None:
        # On the meta device nothing is drawn and nothing is allocated.
        has_bias = layer.bias is not None
        super().__init__(layer.in_features, layer.out_features, bias=has_bias, device="meta")
        _take_frozen(self, layer)
        self.scale = settings.scale
        self.lora_A = nn.Parameter(_drawn((settings.rank, layer.in_features), self.weight))
        self.lora_B = nn.Parameter(self.weight.new_zeros(layer.out_features, settings.rank))

    def forward(self, x: Tensor) -> Tensor:
        """Return x·W0ᵀ + bias + (α/r)·x·Aᵀ·Bᵀ for x (…, inputs)."""
        low = F.linear(x, self.lora_A) * self.scale
        return super().forward(x) + F.linear(low, self.lora_B)


class AdaptedConv2d(nn.Conv2d):
    """A convolution with frozen weights and a trained low-rank change."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, layer: nn.Conv2d, settings: AdapterSettings) -> None:
        super().__init__(
            layer.in_channels,
            layer.out_channels,
            layer.kernel_size,  # type: ignore[arg-type]
            stride=layer.stride,  # type: ignore[arg-type]
            padding=layer.padding,  # type: ignore[arg-type]
            dilation=layer.dilation,  # type: ignore[arg-type]
            bias=layer.bias is not None,
            device="meta",
        )
        _take_frozen(self, layer)
        self.scale = settings.scale
        rank = settings.rank
        self.lora_A = nn.Parameter(_drawn((rank, *self.weight.shape[1:]), self.weight))
        self.lora_B = nn.Parameter(self.weight.new_zeros(layer.out_channels, rank, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution of x (n, inputs, h, w) with W0 + (α/r)·B·A."""
        low = F.conv2d(
            x, self.lora_A, stride=self.stride, padding=self.padding, dilation=self.dilation
        )
        return super().forward(x) + F.conv2d(low * self.scale, self.lora_B)


Adapted: TypeAlias = AdaptedLinear | AdaptedConv2d


def add_adapters(backbone: nn.Module, settings: AdapterSettings) -> None:
    """Freeze a backbone, in place, and add adapters to its layers.

    `backbone.frozen` is set to the names of the frozen weights. Factors are drawn from torch's
    default generator.
    """
    chosen = _chosen_layers(backbone, settings.layers)
    names = []
    for path, module in list(backbone.named_modules()):
        if not isinstance(module, _NormBase | nn.LayerNorm | nn.GroupNorm):
            names += [f"{path}.{leaf}".removeprefix(".") for leaf in _freeze(module)]
    weights = sum(backbone.get_buffer(name).numel() for name in names)
    for path, layer in chosen.items():
        parent, _, name = path.rpartition(".")
        adapted: Adapted
        if isinstance(layer, nn.Linear):
            adapted = AdaptedLinear(layer, settings)
        else:
            adapted = AdaptedConv2d(layer, settings)
        setattr(backbone.get_submodule(parent), name, adapted.train(layer.training))
    backbone.frozen = tuple(names)  # type: ignore[assignment]
    added = sum(tensor.numel() for path, tensor in backbone.named_parameters() if is_factor(path))
    if added >= weights:
        raise ConfigError(
            f"method.adapters: adapters of rank {settings.rank} have {added:,} weights, and the "
            f"frozen backbone has only {weights:,}: lower the rank"
        )


def is_factor(name: str) -> bool:
    """True if a tensor of a model, by its name, is a factor of an adapter."""
    return name.rpartition(".")[2] in (A, B)


def merge_adapters(
    frozen: Mapping[str, Tensor], trained: Mapping[str, Tensor], scale: float
) -> dict[str, Tensor]:
    """Return the weights of a plain backbone: W0 + scale·B·A where there are adapters.

    `frozen` are the weights before training, `trained` those of the model; both by their names in
    the backbone. Trained weights that are no factors replace frozen ones. Sums are in float64, so
    that the device and its kind of float32 do not change the result by more than its rounding.
    """
    merged = dict(frozen)
    for name, tensor in trained.items():
        if not is_factor(name):
            merged[name] = tensor
    for layer in adapted_layers(trained):
        down = trained[f"{layer}.{A}"].double()
        up = trained[f"{layer}.{B}"].double()
        weight = frozen[f"{layer}.weight"]
        change = scale * (up.flatten(1) @ down.flatten(1)).view_as(weight)
        merged[f"{layer}.weight"] = (weight.to(change.device) + change).to(weight.dtype)
    return merged


def adapted_layers(names: Collection[str]) -> list[str]:
    """Return the paths of the layers that have adapters, given the names of a model's tensors."""
    return [name.rpartition(".")[0] for name in names if name.rpartition(".")[2] == A]


def frozen_names(backbone: nn.Module) -> tuple[str, ...]:
    """Return the names of a backbone's frozen weights; () without adapters."""
    return getattr(backbone, "frozen", ())


def frozen_size(backbone: nn.Module) -> int:
    """Return the number of frozen weights."""
    return sum(backbone.get_buffer(name).numel() for name in frozen_names(backbone))


def share_frozen(source: nn.Module, other: nn.Module) -> None:
    """Let another copy of a backbone on the same device use the same frozen weights."""
    for name in frozen_names(source):
        path, _, leaf = name.rpartition(".")
        other.get_submodule(path)._buffers[leaf] = source.get_buffer(name)


def _freeze(module: nn.Module) -> list[str]:
    """Replace the parameters of one module by buffers outside of the state_dict; return names."""
    frozen = []
    for leaf, parameter in list(module._parameters.items()):
        if parameter is not None:
            del module._parameters[leaf]
            module.register_buffer(leaf, parameter.detach(), persistent=False)
            frozen.append(leaf)
    return frozen


def _take_frozen(adapted: nn.Module, layer: nn.Module) -> None:
    """Replace the parameters of a new layer by the frozen weights of another."""
    for leaf in _freeze(adapted):
        adapted.register_buffer(leaf, layer.get_buffer(leaf), persistent=False)


def _drawn(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return A with first values, as a linear layer of its shape has them."""
    down = torch.empty(shape, dtype=like.dtype, device=like.device)
    return nn.init.kaiming_uniform_(down, a=math.sqrt(5))


def _chosen_layers(backbone: nn.Module, names: Collection[str]) -> dict[str, nn.Linear | nn.Conv2d]:
    """Return the layers to adapt, by path; raise ConfigError if a name fits none."""
    layers = dict(_adaptable_layers(backbone))
    if not layers:
        raise ConfigError(
            f"method.adapters: {type(backbone).__name__} has no linear layer and no convolution "
            "after its first one, so nothing can be adapted"
        )
    if not names:
        return layers
    chosen: set[str] = set()
    for name in names:
        named = {path for path in layers if path == name or path.endswith(f".{name}")}
        if not named:
            known = sorted({path.rpartition(".")[2] for path in layers})
            raise ConfigError(
                f'method.adapters.layers: the backbone has no layer "{name}" that can be adapted; '
                f"its layers are {', '.join(known)}, or a whole path such as {next(iter(layers))}"
            )
        chosen |= named
    return {path: layer for path, layer in layers.items() if path in chosen}


def _adaptable_layers(backbone: nn.Module) -> Iterator[tuple[str, nn.Linear | nn.Conv2d]]:
    """Yield plain linear layers and convolutions, except the first convolution.

    Subclasses may compute something else. The out-projection of torch's MultiheadAttention is one:
    its weight is read without calling the layer.
    """
    first = next((m for m in backbone.modules() if isinstance(m, nn.Conv2d)), None)
    for path, module in backbone.named_modules():
        if type(module) is nn.Linear:
            yield path, module
        if type(module) is nn.Conv2d and module is not first and _is_plain(module):
            yield path, module


def _is_plain(layer: nn.Conv2d) -> bool:
    """True if a convolution mixes all channels, and pads with zeros."""
    return layer.groups == 1 and layer.padding_mode == "zeros"
