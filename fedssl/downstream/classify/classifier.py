"""A classifier: a trained backbone, a linear head and the names of the classes, in one file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedssl import nets
from fedssl.core.devices.select import resolve_device
from fedssl.core.errors import ConfigError
from fedssl.downstream.backbone import (
    CLASSIFIER,
    TrainedBackbone,
    backbone_tensors,
    build_backbone,
)
from fedssl.downstream.exported_files import read_exported
from fedssl.downstream.public_header import public_header
from fedssl.probes.linear import Layer
from fedssl.runs.input_images import ImageOrImages, OneImage, Preprocessing


class Prediction(NamedTuple):
    """The most probable class of an image, and its probability."""

    label: str
    confidence: float


class Classifier(nn.Module):
    """A trained backbone with a linear head, in eval mode.

    Attributes:
        backbone: The trained backbone.
        head: The linear layer on its features.
        classes: The names of the classes, in the order of the outputs.
        about: How the head was trained: the number of images, the penalty, the accuracy.
    """

    def __init__(
        self,
        backbone: TrainedBackbone,
        layer: Layer,
        classes: Sequence[str],
        about: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(backbone.dim, len(classes))
        with torch.no_grad():
            self.head.weight.copy_(layer.weight)
            self.head.bias.copy_(layer.bias)
        self.classes = tuple(classes)
        self.about = dict(about)
        self.to(backbone.device)
        self.eval()

    @property
    def preprocess(self) -> Preprocessing:
        """The preprocessing of the backbone."""
        return self.backbone.preprocess

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (n, classes) of prepared images (n, channels, h, w)."""
        logits: Tensor = self.head(self.backbone(images))
        return logits

    @torch.inference_mode()
    def probabilities_of_features(self, features: Tensor) -> Tensor:
        """Return the probabilities (n, classes) of features (n, dim), on the CPU."""
        logits: Tensor = self.head(features.to(self.backbone.device))
        return logits.softmax(1).cpu()

    def probabilities(self, images: ImageOrImages) -> Tensor:
        """Return the probability of each class: (n, classes), or (classes,) of a single image.

        Images are whatever `preprocess` accepts.
        """
        features = self.backbone.features(images)
        if features.ndim == 1:
            return self.probabilities_of_features(features[None])[0]
        return self.probabilities_of_features(features)

    def predict(self, images: ImageOrImages) -> list[Prediction]:
        """Return the most probable class of each image; of a single image, a list of one."""
        if isinstance(images, OneImage) and not (isinstance(images, Tensor) and images.ndim == 4):
            images = [images]
        return self.predictions(self.probabilities(images))

    def predictions(self, probabilities: Tensor) -> list[Prediction]:
        """Return the most probable class of each row of probabilities (n, classes)."""
        best = probabilities.max(1)
        predictions = []
        for confidence, index in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            predictions.append(Prediction(self.classes[index], confidence))
        return predictions

    def save(self, path: str | Path) -> None:
        """Write backbone, head, class names and preprocessing as one safetensors file.

        The header has no name of a client and no path.
        """
        header = public_header(self.backbone.header)
        header[CLASSIFIER] = json.dumps(self.classes, ensure_ascii=False)
        header["about"] = json.dumps(self.about, ensure_ascii=False)
        tensors = {}
        for name, tensor in self.backbone.network.state_dict().items():
            tensors[f"backbone.{name}"] = tensor
        for name, tensor in self.head.state_dict().items():
            tensors[f"head.{name}"] = tensor
        nets.save_backbone(tensors, path, header)


def load_classifier(path: str | Path, *, device: str = "cpu") -> Classifier:
    """Return a classifier that `fedssl classify --save` wrote, in eval mode.

    Raise ConfigError if the file is damaged or is no classifier.
    """
    path = Path(path)
    header, tensors = read_exported(path)
    if CLASSIFIER not in header:
        raise ConfigError(
            f"{path} is a backbone without a classifier: train one with "
            f"`fedssl classify {path} LABELLED_FOLDER --save classifier.safetensors`"
        )
    backbone = build_backbone(header, backbone_tensors(tensors, header), str(path))
    layer = Layer(tensors["head.weight"], tensors["head.bias"])
    classes = json.loads(header[CLASSIFIER])
    about = json.loads(header.get("about", "{}"))
    return Classifier(backbone.to(resolve_device(device)), layer, classes, about)


def is_classifier(path: Path) -> bool:
    """True if a path is a file that has a classifier; False for all other files and folders."""
    if not path.is_file():
        return False
    return CLASSIFIER in nets.read_weights(path)[0]
