"""DINO: match the distribution over K outputs that a centred, sharpened momentum teacher computes
for the other view.

Caron et al., "Emerging Properties in Self-Supervised Vision Transformers", ICCV 2021.
Departures: two views and no small crops; constant momentum and teacher temperature, as the
federated papers train momentum copies; fewer outputs, since a client holds thousands of images and
not a million; the last layer trains from the first step. Each client has its own centre, as it has
its own teacher, of whose outputs the centre is the mean.

DINO needs a small learning rate: after ten rounds of the demo the backbone is no better than a
random one with its 0.004, and is better with 0.0005 (one seed, and the rate was chosen on the
images it was measured with).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedssl.method import METHODS, Batch, Constants, Method, MethodSettings, Output


def distillation_loss(
    student: Tensor, teacher: Tensor, centre: Tensor, tau_s: float, tau_t: float
) -> Tensor:
    """Return a 0-d loss of the outputs of student and teacher (2, B, K) and the centre (K,).

    Eq. 1-3: cross-entropy of softmax(student/τ_s) with softmax((teacher − centre)/τ_t) of the other
    view, averaged.
    """
    expected = F.softmax((teacher.flip(0) - centre) / tau_t, dim=-1)
    return -(expected * F.log_softmax(student / tau_s, dim=-1)).sum(-1).mean()


class Head(nn.Module):
    """Map (n, inputs) to (n, outputs): three layers with GELU, unit length, cosines with `outputs`
    directions."""

    def __init__(self, inputs: int, hidden: int, bottleneck: int, outputs: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(inputs, hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Linear(hidden, bottleneck),
        )
        self.last = nn.Linear(bottleneck, outputs, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        """Return the cosines (n, outputs)."""
        x = self.mlp(h)
        # Rounded as the weights of other layers, before lengths are computed.
        weight = self.last.weight.to(x.dtype)
        return F.linear(F.normalize(x.float(), dim=-1), F.normalize(weight.float(), dim=-1))


class Centre(nn.Module):
    """A moving mean (K,) of the teacher's outputs."""

    mean: Tensor

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(outputs))

    def move(self, outputs: Tensor, momentum: float) -> None:
        """Update the centre by Eq. 4: c ← m·c + (1 − m)·mean of the outputs (…, K)."""
        self.mean.lerp_(outputs.flatten(0, -2).mean(0), 1 - momentum)


class DINOSettings(MethodSettings):
    """Settings of DINO."""

    hidden: int = Field(2048, gt=0)
    bottleneck: int = Field(256, gt=0)  # width of the head before its last layer
    dim: int = Field(4096, gt=1)  # outputs, the paper's K
    momentum: float = Field(0.99, ge=0, le=1)
    tau_s: float = Field(0.1, gt=0)  # the student's temperature, the paper's τ_s
    tau_t: float = Field(0.04, gt=0)  # the teacher's, the paper's τ_t: sharpening
    centre_momentum: float = Field(0.9, ge=0, le=1)  # the paper's m in its Eq. 4


@METHODS.register("dino")
class DINO(Method):
    """DINO: match the distribution over K outputs that a centred, sharpened momentum teacher
    computes for the other view."""

    Settings = DINOSettings
    settings: DINOSettings
    private = ("centre",)
    after_step_moves_weights = False  # the centre is a buffer

    def __init__(self, settings: DINOSettings, backbone: nn.Module, size: int) -> None:
        super().__init__(settings, backbone, size)
        self.projector = Head(
            self.features, settings.hidden, settings.bottleneck, outputs=settings.dim
        )
        self.target = self.mirror()
        self.centre = Centre(settings.dim)

    @property
    def target_momentum(self) -> float:
        """The momentum of the teacher."""
        return self.settings.momentum

    def forward(self, batch: Batch) -> Output:
        """Encode both views; the teacher's outputs are the keys."""
        out = self.encode_views(batch.views[0])
        return out._replace(keys=self.encode_views_target(batch.views[0]))

    def loss(self, out: Output, constants: Constants) -> Tensor:
        """Return the cross-entropy of the student with the teacher."""
        assert out.keys is not None
        return distillation_loss(
            out.z,
            out.keys,
            self.centre.mean,
            tau_s=self.settings.tau_s,
            tau_t=self.settings.tau_t,
        )

    def after_step(self, out: Output) -> None:
        """Move the centre towards the teacher's outputs."""
        assert out.keys is not None
        self.centre.move(out.keys, self.settings.centre_momentum)

    @torch.no_grad()
    def init_local_parts(self, generator: torch.Generator) -> None:
        """Start the teacher as a copy of the student, and the centre at zero."""
        super().init_local_parts(generator)
        self.centre.mean.zero_()
