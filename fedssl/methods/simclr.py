"""SimCLR: identify an image's other view among all views of the batch.

Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations", ICML 2020.
Departures: temperature, projector width and plain SGD as FedEMA trains it, not LARS on batches of
thousands.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedssl.method import METHODS, Batch, Constants, Method, MethodSettings, Output
from fedssl.nets import mlp


def nt_xent(z: Tensor, temperature: float) -> Tensor:
    """Return a 0-d loss of projections z (2, B, k) of two views, the mean over all 2B views.

    "Given a positive pair, […] we treat the other 2(N − 1) augmented examples within a minibatch as
    negative examples": ℓ(i, j) = −log exp(sim(zᵢ, zⱼ)/t) / Σ_{k≠i} exp(sim(zᵢ, z_k)/t), sim the
    cosine.
    """
    z = F.normalize(z, dim=-1)
    positive = (z[0] * z[1]).sum(-1) / temperature  # (B,): the same for both views of an image
    rows = z.flatten(0, 1)  # (2B, k)
    diagonal = torch.eye(len(rows), dtype=torch.bool, device=z.device)
    similarity = (rows @ rows.T / temperature).masked_fill(diagonal, -torch.inf)
    return similarity.logsumexp(1).mean() - positive.mean()


class SimCLRSettings(MethodSettings):
    """Settings of SimCLR."""

    added_later: ClassVar = ("batch_norm",)

    hidden: int = Field(4096, gt=0)
    dim: int = Field(2048, gt=0)
    temperature: float = Field(0.07, gt=0)
    # statistics of BatchNorm: over both views as one batch, or over each view, as in Dec-SSL's code
    batch_norm: Literal["shared", "per-view"] = "shared"


@METHODS.register("simclr")
class SimCLR(Method):
    """SimCLR: identify an image's other view among all views of the batch."""

    Settings = SimCLRSettings
    settings: SimCLRSettings

    def __init__(self, settings: SimCLRSettings, backbone: nn.Module, size: int) -> None:
        super().__init__(settings, backbone, size)
        self.projector = mlp(self.features, settings.hidden, settings.dim)

    def forward(self, batch: Batch) -> Output:
        """Encode both views: as one batch of 2B, as in the paper, or as two batches of B."""
        shared = self.settings.batch_norm == "shared"
        return self.encode_views(batch.views[0], shared=shared)

    def loss(self, out: Output, constants: Constants) -> Tensor:
        """Return NT-Xent."""
        return nt_xent(out.z, self.settings.temperature)

    def chance_loss(self, batch: int) -> float:
        """Return log(2B − 1): all other views of the batch are equally similar."""
        return math.log(2 * batch - 1)
