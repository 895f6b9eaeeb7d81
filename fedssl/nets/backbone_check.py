"""Check that a backbone of another library, or of a user, can be trained here."""

from __future__ import annotations

import copy
import random
from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedssl.core.errors import ConfigError, is_out_of_memory
from fedssl.core.state.flatten import flatten_module
from fedssl.core.state.layout import PARAMETERS
from fedssl.core.state.state import State
from fedssl.nets.backbone import Backbone
from fedssl.nets.norm import _GroupedBatchNorm

_IMAGES = 2  # of a trial: BatchNorm in training needs more than one
_TOLERANCE = 1e-3  # relative, of equal features: sums may be rounded differently


def check_backbone(
    backbone: Backbone, name: str, channels: int, shapes: Collection[tuple[int, int]]
) -> None:
    """Raise ConfigError if a backbone cannot be trained on images of these heights and widths.

    Try a copy of it on a few images of noise. The global random generators are left as they are.
    """
    label = f'backbone "{name}"'
    _check_tensors(backbone, label)
    trial = copy.deepcopy(backbone)
    state = flatten_module(trial, "cpu")
    with _SharedRandomness():
        for height, width in dict.fromkeys(shapes):
            images = _noise(channels, height, width)
            with torch.no_grad():
                features = _try(trial.eval(), images, label)
            _check_features(features, backbone.dim, label)
        _check_training(trial, state, images, label)


def _check_tensors(backbone: nn.Module, label: str) -> None:
    """Raise ConfigError for tensors that cannot be stored and averaged as those of a model."""
    names: dict[int, str] = {}
    for name, tensor in backbone.state_dict(keep_vars=True).items():
        other = names.setdefault(id(tensor), name)
        if other != name:
            raise ConfigError(
                f"{label} has one tensor under two names, {other} and {name}, which is not "
                "supported: give each layer its own"
            )
        if isinstance(tensor, nn.Parameter) and not tensor.requires_grad:
            raise ConfigError(
                f"{label}: parameter {name} has requires_grad=False: register it as a buffer "
                "instead, or let it train"
            )
        is_index = tensor.dtype == torch.int64
        if not (tensor.is_floating_point() or is_index):
            raise ConfigError(
                f"{label}: {name} is a tensor of {tensor.dtype}, which is not supported: "
                "register it with persistent=False, or use floats or int64"
            )


def _check_features(features: Tensor, dim: int, label: str) -> None:
    if not isinstance(features, Tensor) or features.shape != (_IMAGES, dim):
        shape = type(features).__name__
        if isinstance(features, Tensor):
            shape = f"a tensor {tuple(features.shape)}"
        raise ConfigError(
            f"{label} must return features (n, {dim}), one row for each image; for {_IMAGES} "
            f"images it returned {shape}: pool its feature maps, or correct its attribute dim"
        )
    if not bool(torch.isfinite(features).all()):
        raise ConfigError(f"{label} returns features that are not finite for images of noise")


def _check_training(trial: Backbone, state: State, images: Tensor, label: str) -> None:
    """Raise ConfigError if a step of training would not be reproducible, or fails."""
    trial.train()
    first = state.clone()
    with torch.no_grad(), _SharedRandomness() as randomness:
        one = _try(trial, images, label)
        after = state.clone()
        state.load(first)
        other = _try(trial, images, label)
        state.load(first)
    if randomness.used or _differ(one, other):
        raise ConfigError(
            f"{label} draws random numbers in training, which a resumed run could not repeat: "
            "switch off its random layers. fedssl does so for dropout and drop path of torch, "
            "torchvision and timm"
        )
    _check_buffers(trial, first, after, label)
    _check_batch(trial, state, images, label)
    parameters = list(trial.parameters())
    try:
        torch.autograd.grad(trial(images).square().sum(), parameters, allow_unused=True)
    except Exception as problem:
        raise ConfigError(f"{label} has no gradient: {_first_line(problem)}") from problem


def _check_buffers(trial: nn.Module, before: State, after: State, label: str) -> None:
    """Raise ConfigError if a step changes buffers that are not statistics of grouped BatchNorm."""
    statistics = set()
    for path, layer in trial.named_modules():
        if isinstance(layer, _GroupedBatchNorm):
            statistics |= {f"{path}.{name}" for name, _ in layer.named_buffers(recurse=False)}
    for entry in before.layout.entries:
        if entry.role in PARAMETERS or entry.name in statistics:
            continue
        if not torch.equal(before.view(entry), after.view(entry)):
            raise ConfigError(
                f"{label} changes its buffer {entry.name} in training, which is supported only "
                "for BatchNorm: replace this layer"
            )


def _check_batch(trial: Backbone, state: State, images: Tensor, label: str) -> None:
    """Raise ConfigError if features of an image depend on other images, except in BatchNorm."""
    for layer in trial.modules():
        if isinstance(layer, _GroupedBatchNorm):
            layer.eval()
    with torch.no_grad():
        together = trial(images)[:1]
        alone = trial(images[:1])
    trial.train()
    if _differ(together, alone):
        raise ConfigError(
            f"{label} has a layer, other than BatchNorm, that mixes the images of a batch in "
            "training: replace it, since views of an image are encoded in one batch"
        )


def _differ(features: Tensor, others: Tensor) -> bool:
    """True if features differ by more than rounding."""
    most = _TOLERANCE * float(others.abs().max())
    return not torch.allclose(features, others, rtol=_TOLERANCE, atol=most)


def _try(trial: nn.Module, images: Tensor, label: str) -> Tensor:
    """Return the features of images; a ConfigError if the backbone cannot take them."""
    try:
        features: Tensor = trial(images)
    except ConfigError:
        raise
    except Exception as problem:
        if is_out_of_memory(problem):
            raise
        _, channels, height, width = images.shape
        raise ConfigError(
            f"{label} cannot encode images of {height} x {width} pixels with {channels} "
            f"channels: {_first_line(problem)}. Choose another backbone, or another size of images "
            "(method.view_size and, for folders, data.size)"
        ) from problem
    return features


def _first_line(problem: Exception) -> str:
    line = str(problem).partition("\n")[0].strip().rstrip(".")
    return line or type(problem).__name__


def _noise(channels: int, height: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(_IMAGES, channels, height, width, generator=generator)


def _numpy_position() -> tuple[int, bytes]:
    """Return the position of numpy's global generator, and the block of numbers that it is in."""
    state: Any = np.random.get_state(legacy=False)["state"]
    return int(state["pos"]), state["key"].tobytes()


class _SharedRandomness:
    """Detect, in a `with` block, whether global random generators are used; restore them."""

    used = False

    def __enter__(self) -> _SharedRandomness:
        self._torch = torch.get_rng_state()
        self._numpy = _numpy_position()
        self._numpy_state = np.random.get_state()
        self._python = random.getstate()
        return self

    def __exit__(self, *_: object) -> None:
        self.used = (
            not torch.equal(self._torch, torch.get_rng_state())
            or self._numpy != _numpy_position()
            or self._python != random.getstate()
        )
        torch.set_rng_state(self._torch)
        np.random.set_state(self._numpy_state)
        random.setstate(self._python)
