"""Supervised learning: predict an image's class. The baseline of the other methods, and the only
one that uses labels.

As in McMahan et al., "Communication-efficient learning of deep networks from decentralized data",
AISTATS 2017, and the supervised side of Wang et al., "Does Learning from Decentralized Non-IID
Unlabeled Data Benefit from Self Supervision?", ICLR 2023, whose Dec-SLRep is the backbone trained
like this. Departures: random crops and flips, since the papers differ in their views; a crop is
half of the image or more.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedssl.core.errors import ConfigError
from fedssl.method import METHODS, Batch, Constants, Method, MethodSettings, Output
from fedssl.nets import linear, two_layers
from fedssl.views import Augment, ViewGroup


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of −log softmax(logits)[label] for logits (V, B, classes) and labels (V,
    B)."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


class SupervisedSettings(MethodSettings):
    """Settings of supervised learning."""

    added_later: ClassVar[tuple[str, ...]] = ("head",)

    augment: Augment = Augment(crop=(0.5, 1.0), jitter=(0, 0, 0, 0), gray=0)  # crops and flips only
    classes: int = Field(ge=2)  # number of classes at all clients together; labels count from 0
    # the classifier; "mlp" has a hidden layer as wide as the features
    head: Literal["linear", "mlp"] = "linear"


@METHODS.register("supervised")
class Supervised(Method):
    """Supervised learning: predict an image's class. The baseline of the other methods, and the
    only one that uses labels."""

    Settings = SupervisedSettings
    settings: SupervisedSettings
    learns_from_labels: ClassVar[bool] = True
    classifies: ClassVar[bool] = True

    def __init__(self, settings: SupervisedSettings, backbone: nn.Module, size: int) -> None:
        super().__init__(settings, backbone, size)
        # The classifier: projections are logits.
        head = two_layers if settings.head == "mlp" else linear
        self.projector = head(self.features, settings.classes)

    @property
    def views(self) -> tuple[ViewGroup, ...]:
        """One view."""
        return (ViewGroup(1, self.settings.view_size or self.size, self.settings.augment),)

    def check_labels(self, labels: Tensor) -> None:
        """Raise ConfigError if a label is not smaller than the number of classes."""
        if not len(labels):
            return
        largest = int(labels.max())
        if largest >= self.settings.classes:
            raise ConfigError(
                f"method.classes = {self.settings.classes}, "
                f"but a training image has label {largest}; labels count from 0"
            )

    def forward(self, batch: Batch) -> Output:
        """Encode the view; the labels are `expected`."""
        assert batch.labels is not None
        out = self.encode_views(batch.views[0])
        return out._replace(expected=batch.labels.expand(out.z.shape[:2]))

    def loss(self, out: Output, constants: Constants) -> Tensor:
        """Return the cross-entropy with the labels."""
        assert out.expected is not None
        return cross_entropy(out.z, out.expected)
