"""A trained backbone with everything that is needed to use it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from fedssl import nets
from fedssl.core.devices.select import resolve_device
from fedssl.core.errors import ConfigError
from fedssl.downstream.exported_files import find_backbone, read_exported
from fedssl.runs.input_images import ImageOrImages, OneImage, Preprocessing, preprocessing_of

CLASSIFIER = "classifier"  # the header's key of the class names, in a file of a classifier
AT_ONCE = 256  # images in a batch


class TrainedBackbone(nets.Backbone):
    """A trained backbone in eval mode, with its preprocessing.

    Attributes:
        network: The backbone itself, with the parameter names of the exported file.
        preprocess: Turns images into the input of the backbone, as training did.
        name: The name of the network, such as `resnet18`.
        stem: `cifar` or `imagenet`.
        norm: `batch` or `group`.
        dim: The number of features.
        header: The header of the file, all strings.
    """

    def __init__(
        self, network: nets.Backbone, preprocess: Preprocessing, header: Mapping[str, str]
    ) -> None:
        super().__init__()
        self.network = network
        self.preprocess = preprocess
        self.header = dict(header)
        self.name = header["backbone"]
        self.stem = header["stem"]
        self.norm = header.get("norm", "batch")
        self.dim = network.dim
        self.eval()

    @property
    def channels(self) -> int:
        """The number of channels of the images."""
        return self.preprocess.image[0]

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.network.parameters(), torch.empty(0)).device

    def forward(self, images: Tensor) -> Tensor:
        """Return the features (n, dim) of prepared images (n, channels, h, w)."""
        features: Tensor = self.network(images)
        return features

    @torch.inference_mode()
    def features_of_pixels(self, pixels: Tensor) -> Tensor:
        """Return float32 features (n, dim) of uint8 pixels (n, channels, h, w), on the CPU."""
        training = self.training
        self.eval()
        batches = []
        for batch in pixels.split(AT_ONCE):
            features = self(self.preprocess.from_pixels(batch.to(self.device)))
            batches.append(features.float().cpu())
        self.train(training)
        return torch.cat(batches)

    def features(self, images: ImageOrImages) -> Tensor:
        """Return float32 features of images, on the CPU: (n, dim), or (dim,) of a single image.

        Images are whatever `preprocess` accepts. The network is in eval mode, without gradients.
        """
        if isinstance(images, Tensor) and images.ndim == 4:
            images = list(images)
        if isinstance(images, OneImage):
            return self.features_of_pixels(self.preprocess.pixels([images]))[0]
        return self.features_of_pixels(self.preprocess.pixels(images))

    def fingerprint(self) -> str:
        """Return a hash of the weights and the preprocessing: equal ones give equal features."""
        digest = hashlib.sha256(repr((self.name, self.stem, self.preprocess)).encode())
        for name, tensor in sorted(self.network.state_dict().items()):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
        return digest.hexdigest()


def load_backbone(
    path: str | Path, model: str | None = None, *, device: str = "cpu"
) -> TrainedBackbone:
    """Return a trained backbone in eval mode, with its preprocessing as `.preprocess`.

    `path` is a run directory, a file that fedssl exported, or a folder that `fedssl export --to
    hub` wrote. `model` names one of the backbones of a run that has several.

    Raise ConfigError if there is no such backbone, or if its network is not known: a backbone of
    your own must be registered first, by importing its module.
    """
    file = find_backbone(Path(path), model)
    header, tensors = read_exported(file)
    backbone = build_backbone(header, backbone_tensors(tensors, header), str(file))
    return backbone.to(resolve_device(device))


def backbone_tensors(
    tensors: Mapping[str, Tensor], header: Mapping[str, str]
) -> Mapping[str, Tensor]:
    """Return the tensors of the backbone in a file, which may also have a classifier's."""
    if CLASSIFIER not in header:
        return tensors
    return _with_prefix(tensors.items(), "backbone.")


def _with_prefix(tensors: Iterable[tuple[str, Tensor]], prefix: str) -> dict[str, Tensor]:
    chosen = {}
    for name, tensor in tensors:
        if name.startswith(prefix):
            chosen[name.removeprefix(prefix)] = tensor
    return chosen


def build_backbone(
    header: Mapping[str, str], tensors: Mapping[str, Tensor], where: str
) -> TrainedBackbone:
    """Return the backbone that a header describes, with these weights; `where` is for errors."""
    preprocess = preprocessing_of(header)
    norm: nets.Norm = "group" if header.get("norm") == "group" else "batch"
    with torch.random.fork_rng(devices=[]):  # building draws weights, which are overwritten
        network = nets.build(header["backbone"], preprocess.image[0], header["stem"], norm)
    try:
        network.load_state_dict(dict(tensors), strict=True)
    except RuntimeError as problem:
        first_line = str(problem).partition("\n")[2].strip().partition("\n")[0]
        raise ConfigError(
            f"{where} does not fit the backbone {header['backbone']} of its header: {first_line}"
        ) from None
    return TrainedBackbone(network, preprocess, header)
