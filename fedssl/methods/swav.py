"""SwAV: predict from one view the prototypes that another view was assigned to.

Caron et al., "Unsupervised Learning of Visual Features by Contrasting Cluster Assignments", NeurIPS
2020.
Departures: two views and no small crops unless `small` is set; fewer prototypes, since a client
holds thousands of images and not a million; no queue of earlier projections; prototypes train from
the first step; SGD or Adam instead of LARS. Prototypes are normalised to unit length after every
step and, since a mean of unit vectors is shorter, again before every epoch; the paper normalises
them before every step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedssl.core.settings import LARGEST_VIEW
from fedssl.method import METHODS, Batch, Constants, Method, MethodSettings, Output
from fedssl.nets import mlp
from fedssl.views import Augment, ViewGroup


def sinkhorn(scores: Tensor, epsilon: float, iterations: int) -> Tensor:
    """Return codes Q (…, B, K), a distribution for each image, of the scores (…, B, K) of images
    against prototypes.

    Eq. 3-5: Q = diag(u) exp(CᵀZ/ε) diag(v), its marginals made uniform in turn, prototypes first
    and images last: "all the prototypes are selected on average B/K times in each batch".
    """
    largest = scores.amax((-2, -1), keepdim=True)
    q = (scores - largest).div(epsilon).exp()  # at most 1, so that nothing overflows
    for _ in range(iterations):
        q = q / q.sum(-2, keepdim=True)
        q = q / q.sum(-1, keepdim=True)
    return q


def swapped_prediction_loss(scores: Tensor, codes: Tensor, temperature: float) -> Tensor:
    """Return a 0-d loss of the scores (V, B, K) of all views and the codes (G, B, K) of the first
    G.

    Eq. 1-2 and 6: cross-entropy of every view's softmax with the codes of every other view,
    averaged.
    """
    log_p = F.log_softmax(scores / temperature, dim=-1)
    pairs = -torch.einsum("gbk,vbk->gv", codes, log_p) / scores.shape[1]
    others = len(codes) * (len(scores) - 1)
    return (pairs.sum() - pairs.diagonal().sum()) / others


class SwAVSettings(MethodSettings):
    """Settings of SwAV."""

    hidden: int = Field(2048, gt=0)
    dim: int = Field(128, gt=0)
    prototypes: int = Field(300, gt=1)  # how many, the paper's K
    temperature: float = Field(0.1, gt=0)
    epsilon: float = Field(0.05, gt=0)  # the paper's ε: small makes codes hard
    iterations: int = Field(3, gt=0, le=1000)  # of Sinkhorn and Knopp's algorithm
    small: int = Field(0, ge=0, le=64)  # small crops of each image: they predict, without codes
    small_size: int | None = Field(None, gt=0, le=LARGEST_VIEW)  # in pixels; None: half the views'
    small_crop: tuple[float, float] = (0.05, 0.14)  # their share of the image's area


@METHODS.register("swav")
class SwAV(Method):
    """SwAV: predict from one view the prototypes that another view was assigned to."""

    Settings = SwAVSettings
    settings: SwAVSettings

    def __init__(self, settings: SwAVSettings, backbone: nn.Module, size: int) -> None:
        super().__init__(settings, backbone, size)
        self.projector = mlp(self.features, settings.hidden, settings.dim)
        self.prototypes = nn.Linear(settings.dim, settings.prototypes, bias=False)
        self._normalise_prototypes()

    @property
    def views(self) -> tuple[ViewGroup, ...]:
        """Two large views and, if `small` is set, small crops."""
        (large,) = super().views
        if not self.settings.small:
            return (large,)
        augment = Augment(**{**dict(large.augment), "crop": self.settings.small_crop})
        size = self.settings.small_size or max(1, large.size // 2)
        return large, ViewGroup(self.settings.small, size, augment)

    @torch.no_grad()
    def _normalise_prototypes(self) -> None:
        weight = self.prototypes.weight
        weight.copy_(F.normalize(weight, dim=1))

    def before_epoch(self, embed: Callable[[], Tensor]) -> Mapping[str, Tensor]:
        """Normalise the prototypes: a mean of clients' prototypes is shorter than they are."""
        self._normalise_prototypes()
        return {}

    def forward(self, batch: Batch) -> Output:
        """Return as p the scores (V, B, K) of the unit projections against the prototypes."""
        encoded = [self.encode_views(group) for group in batch.views]
        h = torch.cat([out.h for out in encoded])
        z = torch.cat([out.z for out in encoded])
        with self._autocast(z):
            scores: Tensor = self.prototypes(F.normalize(z, dim=-1))
        return Output(h, z, scores.float())

    def loss(self, out: Output, constants: Constants) -> Tensor:
        """Return the cross-entropy of each view with the codes of the other large views."""
        large = len(out.p) - self.settings.small
        scores = out.p[:large].detach()
        codes = sinkhorn(scores, self.settings.epsilon, self.settings.iterations)
        return swapped_prediction_loss(out.p, codes, self.settings.temperature)

    def after_step(self, out: Output) -> None:
        """Normalise the prototypes."""
        self._normalise_prototypes()
