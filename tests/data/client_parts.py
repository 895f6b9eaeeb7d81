"""Partitions in forms that can be compared, and generators to draw them from."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

Parts = Mapping[str, Tensor]


def seeded(seed: int = 0) -> torch.Generator:
    """Return a new generator with this seed."""
    return torch.Generator().manual_seed(seed)


def as_lists(parts: Parts) -> dict[str, list[int]]:
    """Return the indices of each client as a list."""
    return {client: index.tolist() for client, index in parts.items()}


def sizes(parts: Parts) -> list[int]:
    """Return the number of images of each client."""
    return list(map(len, parts.values()))


def all_indices(parts: Parts) -> list[int]:
    """Return the indices of all clients, sorted."""
    return sorted(torch.cat(list(parts.values())).tolist())


def has_fewer_at_each_client(some: Parts, more: Parts) -> bool:
    """True if every client has some, but not all, of the images that it has in `more`."""
    return all(set(some[client].tolist()) < set(more[client].tolist()) for client in more)
