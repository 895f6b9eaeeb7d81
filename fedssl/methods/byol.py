"""BYOL: predict a momentum copy's projection of the other view.

Grill et al., "Bootstrap your own latent", NeurIPS 2020.
Departures: constant momentum, as the federated papers train it. Without EMA or stop-gradient it is
FedEMA's ablation (Table 9): the target remains a separate network, moved by gradients, by the
algorithm, or not at all.
"""

from __future__ import annotations

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedssl.method import METHODS, Batch, Constants, Method, MethodSettings, Output
from fedssl.nets import mlp


class BYOLSettings(MethodSettings):
    """Settings of BYOL."""

    hidden: int = Field(4096, gt=0)
    dim: int = Field(2048, gt=0)
    momentum: float = Field(0.99, ge=0, le=1)
    predictor: bool = True  # off: compare projections directly
    ema: bool = True  # off: the target does not follow the online network
    stop_gradient: bool = True  # off: gradients flow into the target too, and train it


@METHODS.register("byol")
class BYOL(Method):
    """BYOL: predict a momentum copy's projection of the other view."""

    Settings = BYOLSettings
    settings: BYOLSettings

    def __init__(self, settings: BYOLSettings, backbone: nn.Module, size: int) -> None:
        super().__init__(settings, backbone, size)
        self.projector = mlp(self.features, settings.hidden, settings.dim)
        if settings.predictor:
            self.predictor = mlp(settings.dim, settings.hidden, settings.dim)
        self.target = self.mirror()

    @property
    def trained(self) -> tuple[str, ...]:
        """The online parts and, without stop-gradient, the target."""
        return self.online if self.settings.stop_gradient else (*self.online, "target")

    @property
    def target_momentum(self) -> float | None:
        """The momentum of the target; None without EMA."""
        return self.settings.momentum if self.settings.ema else None

    def forward(self, batch: Batch) -> Output:
        """Encode both views; the target's projections are the keys."""
        out = self.encode_views(batch.views[0])
        return out._replace(keys=self.encode_views_target(batch.views[0]))

    def loss(self, out: Output, constants: Constants) -> Tensor:
        """Return (2 − 2 cos(p₁, t₂)) + (2 − 2 cos(p₂, t₁)), averaged over the batch."""
        assert out.keys is not None
        # (2, B): p₁ with t₂, p₂ with t₁
        cosine = F.cosine_similarity(out.p, out.keys.flip(0), dim=-1)
        return (2 - 2 * cosine).mean(1).sum()
