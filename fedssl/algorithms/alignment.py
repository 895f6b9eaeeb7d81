"""Feature alignment: a client's predictions are held near what a given model makes of the same images.

Wang et al., "Does learning from decentralized non-IID unlabeled data benefit from self supervision?", ICLR 2023,
Algorithm 2 without the method's own loss.
Departures: z_g is made once a round, in eval mode; D is averaged over both views; where nothing predicts, projections
are aligned; the pass over clean images moves no running statistics.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from fedssl.client import Client
from fedssl.errors import ConfigError
from fedssl.method import Batch, Given, Method, Output
from fedssl.tree import State

KEY = "z_g"


def projections(client: Client, state: State) -> Given:
    """z_g for each of the client's images, clean and in eval mode (line 6), as tensors of `given`."""
    z = client.embed(state, "z")
    # Up to a power of two, never looked up: clients of about one size then share a recorded step.
    spare = (1 << (len(z) - 1).bit_length()) - len(z)
    return {KEY: F.pad(z, (0, 0, 0, spare))}


def alignment(method: Method, batch: Batch, out: Output, given: Given) -> Tensor:
    """½D(p⁺, z_g) + ½D(p, z_g) (line 10): p⁺ of augmented views, p of clean images. Where nothing predicts, these are
    projections. The pass over clean images moves no running statistics."""
    z_g = given[KEY][batch.index]
    augmented = out.p if "predictor" in method.provides else out.z
    clean = method.encode(method.clean(batch.images), tracked=False).p
    if clean.shape != z_g.shape:
        raise ConfigError(
            f"predictions of {clean.shape[1]} numbers cannot be aligned with projections of {z_g.shape[1]}"
        )
    return (distance(augmented, z_g) + distance(clean, z_g)) / 2


def distance(a: Tensor, b: Tensor) -> Tensor:
    """The paper's D, the negative cosine of features (…, n, k), averaged: 0-d, −1 where they agree."""
    return -F.cosine_similarity(a, b, dim=-1).mean()
