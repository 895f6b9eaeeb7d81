"""Feature alignment: hold a client's predictions near the features of a given model.

Wang et al., "Does learning from decentralized non-IID unlabeled data benefit from self
supervision?", ICLR 2023, Algorithm 2 without the method's own loss.
Departures: z_g is computed once a round, in eval mode; D is averaged over both views; without a
predictor, projections are aligned; the pass over clean images does not update running statistics.
`align_to_features` follows the authors' code instead: projections of both views are aligned with
backbone features, and there is no pass over clean images.
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from fedssl.core.errors import ConfigError
from fedssl.core.state.state import State
from fedssl.method import Batch, Constants, Method, Output
from fedssl.training.client import Client

KEY = "z_g"


def anchors(client: Client, state: State, output: Literal["h", "z"] = "z") -> Constants:
    """Return z_g (line 6) for the client's images, clean and in eval mode, as `constants` tensors.

    They are projections, or backbone features for `output` "h". Rows of zeros are added up to a
    power of two, so that clients of similar size share a captured step; they are never indexed.
    """
    z = client.embed(state, output)
    spare = (1 << (len(z) - 1).bit_length()) - len(z)
    return {KEY: F.pad(z, (0, 0, 0, spare))}


def alignment(method: Method, batch: Batch, out: Output, constants: Constants) -> Tensor:
    """Return ½D(p⁺, z_g) + ½D(p, z_g) (line 10): p⁺ of augmented views, p of clean images.

    Without a predictor, these are projections. The pass over clean images does not update running
    statistics.
    """
    z_g = constants[KEY][batch.index]
    augmented = out.p if "predictor" in method.provides else out.z
    clean = method.encode(method.clean(batch.images), tracked=False).p
    _check_widths("predictions", clean, "projections", z_g)
    return (distance(augmented, z_g) + distance(clean, z_g)) / 2


def align_to_features(out: Output, batch: Batch, constants: Constants) -> Tensor:
    """Return the mean of D(z⁺, h_g) over views, with h_g the backbone features of clean images."""
    h_g = constants[KEY][batch.index]
    _check_widths("projections", out.z[0], "backbone features", h_g)
    return distance(out.z, h_g)


def _check_widths(name: str, rows: Tensor, other_name: str, others: Tensor) -> None:
    """Raise ConfigError if rows that are compared have different widths."""
    if rows.shape != others.shape:
        raise ConfigError(
            f"feature alignment compares {name} with {other_name}, but {name} have "
            f"{rows.shape[1]} numbers and {other_name} {others.shape[1]}: use heads of one width"
        )


def distance(a: Tensor, b: Tensor) -> Tensor:
    """Return the paper's D, the mean negative cosine of features (…, n, k): 0-d, −1 if equal."""
    return -F.cosine_similarity(a, b, dim=-1).mean()
