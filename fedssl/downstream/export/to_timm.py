"""Export a ResNet or ViT as a folder that timm loads: model.safetensors and config.json.

`timm.create_model("local-dir:FOLDER", pretrained=True)` reads both files. timm's ResNets have no
CIFAR stem: two lines replace the first layers of its model, and `timm.models.load_checkpoint` loads
the weights. Position embeddings of a ViT are resampled for the size of the run's images.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedssl import nets
from fedssl.core.errors import ConfigError
from fedssl.downstream.backbone import TrainedBackbone
from fedssl.downstream.export.resnet_stem import is_resnet, set_stem, stem_lines
from fedssl.downstream.export.target import Comparison, Target, compare
from fedssl.downstream.packages import need_packages
from fedssl.nets.vit import ViT, resample

WEIGHTS = "model.safetensors"
TIMM = "timm:"  # before the names of timm's own models
# Options with which timm's transformers take images of any size.
ANY_SIZE = {"dynamic_img_size": True, "strict_img_size": False}
VIT = "vit_tiny_patch16_224"  # every setting that differs is passed as an argument


class TimmModel(NamedTuple):
    """A model of timm by its name and arguments, and the weights that fit it."""

    architecture: str
    arguments: dict[str, Any]
    weights: dict[str, Tensor]
    first_conv: str
    classifier: str
    global_pool: str
    loads_directly: bool  # False if lines must change the model first


def write(target: Target) -> Comparison:
    """Write the folder, load it in timm and compare its features."""
    model = timm_model(target.backbone)
    need_packages(("timm",), "vision")
    target.path.mkdir()
    nets.save_backbone(model.weights, target.path / WEIGHTS, target.header)
    if model.loads_directly:
        text = json.dumps(config(target.backbone, model), indent=2)
        (target.path / "config.json").write_text(f"{text}\n", "utf-8")
    (target.path / "load.py").write_text(_script(target), "utf-8")
    return compare(target, load(target.path, target.backbone, model), prepared=True)


def timm_model(backbone: TrainedBackbone) -> TimmModel:
    """Return timm's model for a backbone; a ConfigError if timm has none."""
    network = backbone.network
    if isinstance(network, ViT):
        return _vit(backbone, network)
    if is_resnet(backbone):
        return _resnet(backbone)
    if backbone.name.startswith(TIMM):
        return _own_model(backbone)
    raise ConfigError(
        f'timm has no network with the parameters of "{backbone.name}": ResNets and ViTs of fedssl '
        "and models of timm can be exported to it; use --to torch, onnx or hub"
    )


def _vit(backbone: TrainedBackbone, network: ViT) -> TimmModel:
    channels, height, width = backbone.preprocess.image
    weights = dict(network.state_dict())
    positions = weights["pos_embed"]
    grid = network.cut(height, width)
    resampled = resample(positions[:, 1:], network.grid, grid)
    weights["pos_embed"] = torch.cat([positions[:, :1], resampled], 1)
    arguments = {
        "img_size": [height, width],
        "patch_size": network.patch,
        "in_chans": channels,
        "embed_dim": network.dim,
        "depth": len(network.blocks),
        "num_heads": network.heads,
    }
    return TimmModel(VIT, arguments, weights, "patch_embed.proj", "head", "token", True)


def _resnet(backbone: TrainedBackbone) -> TimmModel:
    if backbone.norm == "group":
        raise ConfigError(
            "timm cannot build a ResNet with groups of 16 channels from a configuration "
            "(method.norm): use --to torchvision, torch, onnx or hub"
        )
    return TimmModel(
        architecture=backbone.name,
        arguments={"in_chans": backbone.channels},
        weights=dict(backbone.network.state_dict()),
        first_conv="conv1",
        classifier="fc",
        global_pool="avg",
        loads_directly=backbone.stem == "imagenet",
    )


def _own_model(backbone: TrainedBackbone) -> TimmModel:
    """Return a model that was built by timm: its tensors have timm's names already."""
    network: Any = backbone.network
    arguments: dict[str, Any] = {"in_chans": backbone.channels}
    for option, value in ANY_SIZE.items():
        owner = network if option == "dynamic_img_size" else getattr(network, "patch_embed", None)
        if getattr(owner, option, None) is value:
            arguments[option] = value
            break
    settings = getattr(network, "pretrained_cfg", None) or {}
    pool = getattr(network, "global_pool", None)
    return TimmModel(
        architecture=backbone.name.removeprefix(TIMM),
        arguments=arguments,
        weights=dict(network.state_dict()),
        first_conv=settings.get("first_conv", ""),
        classifier=settings.get("classifier", ""),
        global_pool=pool if isinstance(pool, str) else "avg",  # some models have a layer instead
        loads_directly=True,
    )


def config(backbone: TrainedBackbone, model: TimmModel) -> dict[str, Any]:
    """Return the content of config.json, as timm reads it."""
    channels = backbone.channels
    preprocess = backbone.preprocess
    return {
        "architecture": model.architecture,
        "num_classes": 0,
        "num_features": backbone.dim,
        "global_pool": model.global_pool,
        "model_args": model.arguments,
        "pretrained_cfg": {
            "num_classes": 0,
            "input_size": list(preprocess.image),
            "fixed_input_size": model.architecture == VIT,
            "pool_size": None,
            "interpolation": "bilinear",
            "crop_pct": 1.0,
            "crop_mode": "center",
            "mean": list(preprocess.mean or (0.0,) * channels),
            "std": list(preprocess.std or (1.0,) * channels),
            "first_conv": model.first_conv,
            "classifier": model.classifier,
        },
    }


def load(folder: Path, backbone: TrainedBackbone, model: TimmModel) -> Any:
    """Return timm's model in eval mode, loaded as the lines load it."""
    import timm

    with torch.random.fork_rng(devices=[]):
        if model.loads_directly:
            return timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
        built = timm.create_model(model.architecture, num_classes=0, **model.arguments)
        set_stem(built, backbone, sets_channels=True)
        timm.models.load_checkpoint(built, str(folder / WEIGHTS))
    return built.eval()


def lines(target: Target, place: str) -> str:
    """Return the lines of Python that load the folder at a place."""
    return "\n".join([*_imports(target), "", f"folder = {place!r}", *_loading(target)]) + "\n"


def _script(target: Target) -> str:
    """Return load.py, which loads the folder that it is in, wherever that is."""
    first = ["from pathlib import Path", "", *_imports(target), ""]
    return "\n".join([*first, "folder = Path(__file__).parent", *_loading(target)]) + "\n"


def _imports(target: Target) -> list[str]:
    if timm_model(target.backbone).loads_directly:
        return ["import timm"]
    return ["import timm", "import torch"]


def _loading(target: Target) -> list[str]:
    """Return the lines that load timm's model from `folder`."""
    model = timm_model(target.backbone)
    if model.loads_directly:
        return ['model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()']
    channels = target.backbone.channels
    return [
        f'model = timm.create_model("{model.architecture}", num_classes=0, in_chans={channels})',
        *stem_lines(target.backbone, sets_channels=True),
        f'timm.models.load_checkpoint(model, f"{{folder}}/{WEIGHTS}")',
        "model.eval()",
    ]
