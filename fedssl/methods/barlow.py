"""Barlow Twins: each entry of the projections agrees between two views, and different entries are
uncorrelated.

Zbontar et al., "Barlow Twins: Self-Supervised Learning via Redundancy Reduction", ICML 2021.
Departures: a projector 2048 wide instead of 8192, which would be twelve times a ResNet-18 to send;
SGD or Adam instead of LARS, and for their sake the loss times 1/32; views without blur and
solarisation.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor, nn

from fedssl.method import METHODS, Batch, Constants, Method, MethodSettings, Output
from fedssl.nets import expander


def redundancy_loss(z: Tensor, lam: float) -> Tensor:
    """Return a 0-d loss of projections z (2, B, k) of two views, a sum over the entries of C.

    L = Σᵢ (1 − Cᵢᵢ)² + λ Σᵢ Σⱼ≠ᵢ Cᵢⱼ², "C the cross-correlation matrix computed between the outputs
    of the two identical networks along the batch dimension", (k, k).
    """
    centred = z - z.mean(1, keepdim=True)
    unit = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()  # variance 1
    c = unit[0].T @ unit[1] / z.shape[1]
    diagonal = c.diagonal()
    return (1 - diagonal).square().sum() + lam * (c.square().sum() - diagonal.square().sum())


class BarlowSettings(MethodSettings):
    """Settings of Barlow Twins."""

    hidden: int = Field(2048, gt=0)
    dim: int = Field(2048, gt=0)
    lam: float = Field(0.005, ge=0)  # weight of the entries off the diagonal, the paper's λ
    scale: float = Field(1 / 32, gt=0)  # of the loss, a sum over the matrix; 1: the paper's formula


@METHODS.register("barlow")
class Barlow(Method):
    """Barlow Twins: each entry of the projections agrees between two views, and different entries
    are uncorrelated."""

    Settings = BarlowSettings
    settings: BarlowSettings

    def __init__(self, settings: BarlowSettings, backbone: nn.Module, size: int) -> None:
        super().__init__(settings, backbone, size)
        self.projector = expander(self.features, settings.hidden, settings.dim)

    def forward(self, batch: Batch) -> Output:
        """Encode both views."""
        return self.encode_views(batch.views[0])

    def loss(self, out: Output, constants: Constants) -> Tensor:
        """Return the paper's loss times `scale`."""
        return self.settings.scale * redundancy_loss(out.z, self.settings.lam)
