"""What every export shares: the model, the images it is compared on, and the result."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedssl.core.errors import ConfigError, FedsslError
from fedssl.core.seeds import generator
from fedssl.downstream.backbone import TrainedBackbone
from fedssl.downstream.classify.classifier import Classifier
from fedssl.downstream.public_header import public_header
from fedssl.runs.input_images import Preprocessing

COMPARED_IMAGES = 8
TOLERANCE = 1e-4  # of the largest number that the model returns
SMALLEST_LIMIT = 1e-6

Model = TrainedBackbone | Classifier


class Comparison(NamedTuple):
    """The largest difference between fedssl's output and that of another library."""

    difference: float
    largest: float  # absolute value among fedssl's outputs
    images: int

    @property
    def limit(self) -> float:
        """The largest difference that is accepted."""
        return max(SMALLEST_LIMIT, TOLERANCE * self.largest)


class Exported(NamedTuple):
    """An export that was loaded again and compared."""

    path: Path
    comparison: Comparison
    lines: str  # of Python that load it


class Target(NamedTuple):
    """What is exported, and where it is written.

    `path` is a temporary name; `final` the name that it has afterwards. With `normalise`, formats
    that contain the computation take uint8 pixels and prepare them.
    """

    model: Model
    path: Path
    final: Path
    normalise: bool
    place: Path  # that the model was loaded from

    @property
    def backbone(self) -> TrainedBackbone:
        """The backbone, also that of a classifier."""
        if isinstance(self.model, Classifier):
            return self.model.backbone
        return self.model

    @property
    def preprocess(self) -> Preprocessing:
        """The preprocessing of the backbone."""
        return self.backbone.preprocess

    @property
    def header(self) -> dict[str, str]:
        """The metadata of the exported file, without private information."""
        header = public_header(self.backbone.header)
        if isinstance(self.model, Classifier):
            header["classes"] = json.dumps(self.model.classes, ensure_ascii=False)
        return header

    @property
    def output(self) -> str:
        """The name of what the model returns."""
        if isinstance(self.model, Classifier):
            return "probabilities"
        return "features"

    def example(self, images: int) -> Tensor:
        """Return an input, all zeros, of the shape and type that the file takes."""
        shape = (images, *self.preprocess.image)
        if self.normalise:
            return torch.zeros(shape, dtype=torch.uint8)
        return torch.zeros(shape)


class Deployed(nn.Module):
    """A traceable model: prepared images, or uint8 pixels, to features or probabilities."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.network: nn.Module = target.model
        self.softmax = isinstance(target.model, Classifier)
        self.takes_pixels = target.normalise
        channels = target.preprocess.image[0]
        self.mean: Tensor
        self.std: Tensor
        mean, std = target.preprocess.normalisation or ((0.0,) * channels, (1.0,) * channels)
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=True)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=True)
        self.normalised = target.preprocess.normalisation is not None
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """Return features (n, dim), or the probabilities of a classifier (n, classes)."""
        if self.takes_pixels:
            images = images.float() / 255
            if self.normalised:
                images = (images - self.mean) / self.std
        outputs: Tensor = self.network(images)
        if self.softmax:
            outputs = outputs.softmax(1)
        return outputs


def compared_pixels(preprocess: Preprocessing) -> Tensor:
    """Return uint8 pixels (n, channels, height, width) to compare on: ramps, noise, black, white.

    They are the same on every machine and contain no image of a user.
    """
    channels, height, width = preprocess.image
    stream = generator("compared images")
    noise = torch.randint(256, (COMPARED_IMAGES, channels, height, width), generator=stream)
    down = torch.linspace(0, 255, height)[:, None].expand(height, width)
    across = torch.linspace(0, 255, width)[None].expand(height, width)
    noise[0] = down
    noise[1] = across
    noise[2] = (down + across) / 2
    noise[3] = 0
    noise[4] = 255
    return noise.to(torch.uint8)


@torch.no_grad()
def compare(target: Target, run: Callable[[Tensor], Any], *, prepared: bool) -> Comparison:
    """Compare the outputs of an exported model with fedssl's, in batches of several sizes.

    `run` returns the outputs of prepared images or, unless `prepared`, of uint8 pixels. Raise
    FedsslError if they differ by more than rounding.
    """
    pixels = compared_pixels(target.preprocess)
    own_model = Deployed(target._replace(normalise=True))
    own_outputs = []
    other_outputs = []
    for batch in pixels.split((1, 2, len(pixels) - 3)):
        own_outputs.append(own_model(batch))
        inputs = target.preprocess.from_pixels(batch) if prepared else batch
        other_outputs.append(run(inputs).float())
    reference = torch.cat(own_outputs)
    outputs = torch.cat(other_outputs)
    if outputs.shape != reference.shape:
        raise FedsslError(
            f"the export is not usable: it returns outputs of shape {tuple(outputs.shape)}, "
            f"fedssl of shape {tuple(reference.shape)}; nothing was written"
        )
    comparison = Comparison(
        difference=float((outputs - reference).abs().max()),
        largest=float(reference.abs().max()),
        images=len(pixels),
    )
    if not comparison.difference <= comparison.limit:  # also if it is not a number
        raise FedsslError(
            f"the export is not usable: its {target.output} differ from fedssl's by up to "
            f"{comparison.difference:.3g}, more than the tolerance of {comparison.limit:.3g}; "
            "nothing was written"
        )
    return comparison


@contextmanager
def explained_tracing(target: Target) -> Iterator[None]:
    """Raise ConfigError if torch cannot trace a network, which may be a user's own."""
    try:
        yield
    except Exception as problem:  # torch raises errors of many types
        first_line = str(problem).strip().partition("\n")[0]
        raise ConfigError(
            f"torch cannot trace the backbone {target.backbone.name} ({type(problem).__name__}: "
            f"{first_line}): use --to hub, or change its code so that it does not depend on the "
            "values of tensors"
        ) from problem


def describe_input(target: Target) -> str:
    """Return a sentence about the input of a file that contains the computation."""
    channels, height, width = target.preprocess.image
    shape = f"(n, {channels}, {height}, {width})"
    if target.normalise:
        return f"uint8 pixels {shape}; the file divides them by 255 and normalises them"
    return f"float32 images {shape}, pixels / 255, then (x - mean) / std where mean is given"


def metadata(target: Target) -> Mapping[str, str]:
    """Return the metadata of a file that contains the computation."""
    return {
        **target.header,
        "input": describe_input(target),
        "output": target.output,
        "preprocessing": target.preprocess.describe(),
    }
