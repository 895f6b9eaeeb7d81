"""CCL's shared features: projected by clients, joined at a site, sent to all in the next round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from fedssl.core.seeds import derive
from fedssl.core.state.tree import Tree, tensor
from fedssl.method import Method
from fedssl.training.trainer import Trainer


def local_keys(method: Method) -> Tensor:
    """Return the queue (K, d) of a method."""
    return method.get_buffer("queue.keys")


def projected(trainer: Trainer, inputs: Iterable[Tensor]) -> Tensor:
    """Return unit projections (n, d) of inputs (m, C, H, W) by the momentum copy in eval mode."""
    with trainer.eval_mode() as method:
        return torch.cat([F.normalize(method.encode_target(batch), dim=-1) for batch in inputs])


def join_features(features: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return features (m, d) by client as one tensor (n, d), and the owner of each row (n,)."""
    owners = []
    for client_id, rows in features.items():
        number = owner_number(client_id)
        owners.append(torch.full((len(rows),), number, dtype=torch.int64, device=rows.device))
    return {"features": torch.cat(list(features.values())), "owners": torch.cat(owners)}


def no_features(method: Method) -> dict[str, Tensor]:
    """Return the joined features before the first round."""
    return join_features({"": local_keys(method)[:0].clone()})


def features_of(site: Tree, client_id: str) -> Tensor:
    """Return the features (n, d) of one client, in the order in which it sent them."""
    return tensor(site, "features")[tensor(site, "owners") == owner_number(client_id)]


def features_of_others(
    message: Tree, client_id: str, limit: int, generator: torch.Generator
) -> tuple[Tensor, int]:
    """Return features of other clients (r, d), at most `limit`, drawn at random, and their number.

    r is a power of two, or `limit`, so that few shapes occur; rows after the features are zeros.
    """
    features = tensor(message, "features")
    owners = tensor(message, "owners")
    foreign = (owners != owner_number(client_id)).nonzero().flatten()
    order = torch.randperm(len(foreign), generator=generator)[:limit]
    chosen = features[foreign[order.to(foreign.device)]]
    unit = F.normalize(chosen, dim=-1)  # uploads may hold rows of another length
    room = min(1 << (max(len(unit), 1) - 1).bit_length(), limit)
    return F.pad(unit, (0, 0, 0, room - len(unit))), len(unit)


def owner_number(client_id: str) -> int:
    """Return a client's number, the same on every machine."""
    return derive("owner", client_id)
