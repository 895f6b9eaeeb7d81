"""Rotation: predict by how many quarter turns an image was rotated. FedPR and FedRot are this under
FedAvg.

Gidaris et al., "Unsupervised Representation Learning by Predicting Image Rotations" (RotNet), ICLR
2018.
Departures: a linear classifier on the backbone's features instead of one inside a Network in
Network; crops of half of the image or more instead of shifts by a few pixels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fedssl.method import METHODS, Batch, Constants, Method, MethodSettings, Output
from fedssl.nets import linear
from fedssl.views import Augment, ViewGroup

TURNS = 4


def quarter_turns(images: Tensor) -> Tensor:
    """Return square images (B, C, h, h) rotated by 0, 90, 180 and 270 degrees, (4, B, C, h, h)."""
    return torch.stack([images.rot90(turns, (-2, -1)) for turns in range(TURNS)])


def rotation_loss(logits: Tensor) -> Tensor:
    """Return a 0-d loss of logits (4, B, 4), first axis the true number of turns, averaged over all
    4B images.

    Eq. 3: −1/K Σ_y log F^y(g(X|y)|θ), the cross-entropy of "all the four rotated copies of an
    image".
    """
    return -logits.log_softmax(-1).diagonal(dim1=0, dim2=2).mean()


class RotationSettings(MethodSettings):
    """Settings of rotation prediction."""

    augment: Augment = Augment(crop=(0.5, 1.0), jitter=(0, 0, 0, 0), gray=0)  # crops and flips only


@METHODS.register("rotation")
class Rotation(Method):
    """Predict by how many quarter turns an image was rotated. FedPR and FedRot are this under
    FedAvg."""

    Settings = RotationSettings
    settings: RotationSettings

    def __init__(self, settings: RotationSettings, backbone: nn.Module, size: int) -> None:
        super().__init__(settings, backbone, size)
        self.projector = linear(self.features, TURNS)  # the classifier: projections are logits

    @property
    def views(self) -> tuple[ViewGroup, ...]:
        """One view, which `forward` rotates."""
        return (ViewGroup(1, self.settings.view_size or self.size, self.settings.augment),)

    def forward(self, batch: Batch) -> Output:
        """Encode the four rotations of each image."""
        # In one batch: with statistics for each rotation, BatchNorm could reveal it.
        return self.encode_views(quarter_turns(batch.views[0][0]), shared=True)

    def loss(self, out: Output, constants: Constants) -> Tensor:
        """Return the cross-entropy with the true number of turns."""
        return rotation_loss(out.z)

    def chance_loss(self, batch: int) -> float:
        """Return log 4: all turns are equally likely."""
        return math.log(TURNS)
