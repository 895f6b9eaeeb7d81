"""SimSiam: predict the other view's projection, whose gradient is stopped.

Chen and He, "Exploring Simple Siamese Representation Learning", CVPR 2021.
Departures: BYOL's two-layer heads, as FedEMA trains it, instead of a three-layer projector and a
bottleneck.
"""

from __future__ import annotations

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedssl.method import METHODS, Batch, Constants, Method, MethodSettings, Output
from fedssl.nets import mlp


def symmetric_cosine(p: Tensor, z: Tensor) -> Tensor:
    """Return a 0-d loss in −1…1 of predictions p and projections z, each (2, B, k), averaged over
    the batch.

    "L = ½ D(p₁, stopgrad(z₂)) + ½ D(p₂, stopgrad(z₁))", D the negative cosine. The caller stops the
    gradient.
    """
    cosine = F.cosine_similarity(p, z.flip(0), dim=-1)
    return -cosine.mean()  # over (2, B): half of each direction


class SimSiamSettings(MethodSettings):
    """Settings of SimSiam."""

    hidden: int = Field(4096, gt=0)
    dim: int = Field(2048, gt=0)
    predictor: bool = True  # off: compare projections directly
    stop_gradient: bool = True  # off: gradients flow into the keys too


@METHODS.register("simsiam")
class SimSiam(Method):
    """SimSiam: predict the other view's projection, whose gradient is stopped."""

    Settings = SimSiamSettings
    settings: SimSiamSettings

    def __init__(self, settings: SimSiamSettings, backbone: nn.Module, size: int) -> None:
        super().__init__(settings, backbone, size)
        self.projector = mlp(self.features, settings.hidden, settings.dim)
        if settings.predictor:
            self.predictor = mlp(settings.dim, settings.hidden, settings.dim)

    def forward(self, batch: Batch) -> Output:
        """Encode both views; the projections, without gradient, are the keys."""
        out = self.encode_views(batch.views[0])
        keys = out.z.detach() if self.settings.stop_gradient else out.z
        return out._replace(keys=keys)

    def loss(self, out: Output, constants: Constants) -> Tensor:
        """Return the negative cosine of predictions and keys."""
        assert out.keys is not None
        return symmetric_cosine(out.p, out.keys)
