"""Supervised learning: say an image's class. What the others are compared with; the only method that sees labels.

As in McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017, and
the supervised side of Wang et al., "Does Learning from Decentralized Non-IID Unlabeled Data Benefit from Self
Supervision?", ICLR 2023, whose Dec-SLRep is the backbone trained like this.
Departures: random crops and flips, since the papers differ in their views; a crop is half of the image or more.
"""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedssl.errors import ConfigError
from fedssl.method import METHODS, Batch, Given, Method, MethodSettings, Output
from fedssl.nets import linear
from fedssl.views import Augment, ViewGroup


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Logits (V, B, classes) and labels (V, B) to a 0-d loss, the mean of −log softmax(logits)[label]."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


class SupervisedSettings(MethodSettings):
    augment: Augment = Augment(crop=(0.5, 1.0), jitter=(0, 0, 0, 0), gray=0)  # crops and flips only
    classes: int = Field(ge=2)  # how many there are at all clients together; labels count from 0


@METHODS.register("supervised")
class Supervised(Method):
    Settings = SupervisedSettings
    settings: SupervisedSettings
    learns_from_labels: ClassVar[bool] = True
    classifies: ClassVar[bool] = True

    def __init__(self, settings: SupervisedSettings, backbone: nn.Module, size: int) -> None:
        super().__init__(settings, backbone, size)
        self.projector = linear(self.features, settings.classes)  # the classifier: projections are logits

    @property
    def views(self) -> tuple[ViewGroup, ...]:
        return (ViewGroup(1, self.settings.view_size or self.size, self.settings.augment),)

    def check_labels(self, labels: Tensor) -> None:
        if len(labels) and (most := int(labels.max())) >= self.settings.classes:
            raise ConfigError(
                f"method.classes = {self.settings.classes}, but a training image has label {most}; labels count from 0"
            )

    def forward(self, batch: Batch) -> Output:
        assert batch.labels is not None
        out = self.encode_views(batch.views[0])
        return out._replace(wanted=batch.labels.expand(out.z.shape[:2]))

    def loss(self, out: Output, given: Given) -> Tensor:
        assert out.wanted is not None
        return cross_entropy(out.z, out.wanted)
