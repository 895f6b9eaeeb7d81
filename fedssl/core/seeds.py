"""Random streams, derived and never shared: the seed of each is a hash of its purpose."""

from __future__ import annotations

import hashlib
import json

import torch


def derive(*purpose: str | int) -> int:
    """Return a 63-bit seed from (run seed, round, client, purpose …): the same on every machine, in
    any order of use."""
    digest = hashlib.sha256(json.dumps(purpose).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(*purpose: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator with the seed derived from a purpose."""
    return torch.Generator(device).manual_seed(derive(*purpose))
