"""VICReg: the projections of two views are close, every entry varies over the batch, and different
entries are uncorrelated.

Bardes et al., "VICReg: Variance-Invariance-Covariance Regularization for Self-Supervised Learning",
ICLR 2022.
Departures: the invariance term is a mean over entries and the variance term a mean over views, as
in the authors' code, to which the coefficients belong (Eq. 5 and 6 have sums); an expander 2048
wide instead of 8192, which would be twelve times a ResNet-18 to send; SGD or Adam instead of LARS;
views without blur and solarisation.
"""

from __future__ import annotations

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedssl.method import METHODS, Batch, Constants, Method, MethodSettings, Output
from fedssl.nets import expander

GAMMA = 1.0  # the minimum standard deviation that the variance term asks for
EPSILON = 1e-4  # keeps the square root away from 0


def variance(z: Tensor) -> Tensor:
    """Return a 0-d hinge on the standard deviations of z (V, B, k) over the batch: the mean of
    max(0, γ − √(Var + ε))."""
    return F.relu(GAMMA - (z.var(1) + EPSILON).sqrt()).mean()


def covariance(z: Tensor) -> Tensor:
    """Return Σ_{i≠j} Cov(z)ᵢⱼ² / k of z (V, B, k), summed over the views."""
    _, n, k = z.shape
    centred = z - z.mean(1, keepdim=True)
    c = centred.mT @ centred / (n - 1)  # (V, k, k)
    return (c.square().sum() - c.diagonal(dim1=1, dim2=2).square().sum()) / k


class VICRegSettings(MethodSettings):
    """Settings of VICReg."""

    hidden: int = Field(2048, gt=0)
    dim: int = Field(2048, gt=0)
    lam: float = Field(25.0, ge=0)  # weight of the invariance term, the paper's λ
    mu: float = Field(25.0, ge=0)  # of the variance term, μ
    nu: float = Field(1.0, ge=0)  # of the covariance term, ν


@METHODS.register("vicreg")
class VICReg(Method):
    """VICReg: the projections of two views are close, every entry varies over the batch, and
    different entries are uncorrelated."""

    Settings = VICRegSettings
    settings: VICRegSettings

    def __init__(self, settings: VICRegSettings, backbone: nn.Module, size: int) -> None:
        super().__init__(settings, backbone, size)
        self.projector = expander(self.features, settings.hidden, settings.dim)

    def forward(self, batch: Batch) -> Output:
        """Encode both views."""
        return self.encode_views(batch.views[0])

    def loss(self, out: Output, constants: Constants) -> Tensor:
        """Return λ s(Z, Z′) + μ [v(Z) + v(Z′)]/2 + ν [c(Z) + c(Z′)]."""
        s = self.settings
        z = out.z
        return s.lam * F.mse_loss(z[0], z[1]) + s.mu * variance(z) + s.nu * covariance(z)
