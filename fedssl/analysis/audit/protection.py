"""What clipping and noise on the client would leave of an update, to see what they change."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def clip_and_noise(
    tensors: Sequence[Tensor], clip: float | None, noise: float, stream: torch.Generator
) -> list[Tensor]:
    """Return an update scaled down to the L2 norm `clip`, plus Gaussian noise.

    The noise in each number has the standard deviation `noise` · `clip`; without `clip`, `noise` ·
    the norm of the update.
    """
    norm = torch.stack([tensor.square().sum() for tensor in tensors]).sum().sqrt()
    bound = norm if clip is None else torch.tensor(clip, device=norm.device)
    scale = (bound / norm.clamp_min(1e-20)).clamp_max(1.0)
    protected = []
    for tensor in tensors:
        drawn = torch.randn(tensor.shape, generator=stream).to(tensor.device)
        protected.append(scale * tensor + noise * bound * drawn)
    return protected
