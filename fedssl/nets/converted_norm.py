"""Replace the BatchNorm layers of torch and timm by layers with statistics per group of images.

A layer keeps its tensors, its names, its momentum, its epsilon and its activation, so that a model
computes the same features in evaluation, and its state_dict has the same keys.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from fedssl.core.errors import ConfigError
from fedssl.nets.norm import BatchNorm1d, BatchNorm2d, _GroupedBatchNorm

# timm's layers that contain an activation, by name: timm is optional, so it is not imported here.
_WITH_ACTIVATION = ("BatchNormAct2d", "SyncBatchNormAct")


class _ConvertedBatchNorm(_GroupedBatchNorm):
    """A grouped BatchNorm with the tensors and settings of another layer, then its activation.

    It computes in plain torch on CUDA too: the layer that follows may change its result in place,
    which the fused kernels do not allow.
    """

    def __init__(self, layer: _BatchNorm) -> None:
        super().__init__(layer.num_features)
        assert layer.momentum is not None
        self.eps = layer.eps
        self.momentum = layer.momentum
        self.affine = layer.affine
        self.weight = layer.weight
        self.bias = layer.bias
        self.running_mean = layer.running_mean
        self.running_var = layer.running_var
        self.num_batches_tracked = layer.num_batches_tracked
        self.drop = _unless_identity(getattr(layer, "drop", None))
        self.act = _unless_identity(getattr(layer, "act", None))
        self.training = layer.training

    def twice(self, images: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the result after the activation twice."""
        self.fused = False
        out, _ = super().twice(images, residual)
        if self.drop is not None:
            out = self.drop(out)
        if self.act is not None:
            out = self.act(out)
        return out, out


class ConvertedBatchNorm1d(_ConvertedBatchNorm, BatchNorm1d):
    """Grouped batch normalisation of rows (n, d) or sequences (n, C, t)."""


class ConvertedBatchNorm2d(_ConvertedBatchNorm, BatchNorm2d):
    """Grouped batch normalisation of images (n, C, h, w), then an activation."""


def convert_norms(module: nn.Module) -> None:
    """Replace, in place, every BatchNorm of torch or timm inside a module.

    Other layers that normalise by the statistics of a batch are a ConfigError, because they would
    mix the views of an image.
    """
    _convert_children(module, "", {})


def _convert_children(module: nn.Module, prefix: str, converted: dict[int, nn.Module]) -> None:
    """Convert the layers below `prefix`; a layer with two names stays one layer."""
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        if isinstance(child, _GroupedBatchNorm):
            continue
        if isinstance(child, _BatchNorm):
            if id(child) not in converted:
                converted[id(child)] = _converted(child, path)
            setattr(module, name, converted[id(child)])
            continue
        if isinstance(child, _InstanceNorm) and child.track_running_stats:
            raise ConfigError(
                f"layer {path} of the backbone is an {type(child).__name__} with running "
                "statistics, which is not supported: set its track_running_stats=False"
            )
        _convert_children(child, f"{path}.", converted)


def _converted(layer: _BatchNorm, path: str) -> _GroupedBatchNorm:
    """Return the grouped layer for a layer of torch or timm."""
    name = type(layer).__name__
    if layer.momentum is None or not layer.track_running_stats:
        raise ConfigError(
            f"layer {path} of the backbone is a {name} without a constant momentum or without "
            "running statistics, which is not supported: use momentum=0.1 and "
            "track_running_stats=True"
        )
    if type(layer) is nn.BatchNorm1d:
        return ConvertedBatchNorm1d(layer)
    with_activation = name in _WITH_ACTIVATION and type(layer).__module__.startswith("timm.")
    if type(layer) in (nn.BatchNorm2d, nn.SyncBatchNorm) or with_activation:
        return ConvertedBatchNorm2d(layer)
    raise ConfigError(
        f"layer {path} of the backbone is a {name}, which would mix the statistics of views: use "
        "BatchNorm1d, BatchNorm2d or SyncBatchNorm of torch, which fedssl converts, or the layers "
        "in fedssl.nets"
    )


def _unless_identity(layer: nn.Module | None) -> nn.Module | None:
    """Return a layer, or None if it does nothing in training either."""
    if layer is None or isinstance(layer, nn.Identity):
        return None
    return layer
