"""Export as a folder in Hugging Face's layout, with a model card."""

from __future__ import annotations

import json
from typing import Any

from fedssl import nets
from fedssl.downstream.backbone import TrainedBackbone, load_backbone
from fedssl.downstream.export.model_card import facts_of, model_card
from fedssl.downstream.export.target import Comparison, Target, compare
from fedssl.downstream.exported_files import HUB_WEIGHTS

BILINEAR = 2  # Pillow's number, as in configurations of image processors


def write(target: Target) -> Comparison:
    """Write the folder, load it again and compare its features."""
    backbone = target.backbone
    facts = facts_of(target.place)
    target.path.mkdir()
    nets.save_backbone(backbone.network.state_dict(), target.path / HUB_WEIGHTS, target.header)
    files = {
        "config.json": _json(config(backbone)),
        "preprocessor_config.json": _json(preprocessor_config(backbone)),
        "README.md": model_card(backbone, facts),
    }
    for name, text in files.items():
        (target.path / name).write_text(text, "utf-8")
    return compare(target, load_backbone(target.path), prepared=True)


def config(backbone: TrainedBackbone) -> dict[str, Any]:
    """Return the content of config.json; the header of the weights has the same values."""
    channels, height, width = backbone.preprocess.image
    return {
        "library_name": "fedssl",
        "model_type": "fedssl-backbone",
        "backbone": backbone.name,
        "stem": backbone.stem,
        "norm": backbone.norm,
        "num_channels": channels,
        "image_size": [height, width],
        "hidden_size": backbone.dim,
        "torch_dtype": "float32",
    }


def preprocessor_config(backbone: TrainedBackbone) -> dict[str, Any]:
    """Return the content of preprocessor_config.json, with the keys of image processors."""
    preprocess = backbone.preprocess
    channels, height, width = preprocess.image
    normalised = preprocess.normalisation is not None
    return {
        "steps": preprocess.describe(),
        "num_channels": channels,
        "fit": preprocess.fit,
        "background": preprocess.background,
        "do_convert_rgb": channels == 3,
        "do_convert_grayscale": channels == 1,
        "do_center_crop": preprocess.fit == "crop",
        "do_pad": preprocess.fit == "pad",
        "do_resize": True,
        "size": {"height": height, "width": width},
        "resample": BILINEAR,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": normalised,
        "image_mean": list(preprocess.mean or (0.0,) * channels),
        "image_std": list(preprocess.std or (1.0,) * channels),
    }


def _json(values: dict[str, Any]) -> str:
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def lines(target: Target, place: str) -> str:
    """Return the lines of Python that load the folder at a place."""
    return f"import fedssl\n\nbackbone = fedssl.load_backbone({place!r})\n"
