"""Randomness is derived, never shared: every stream's seed is a hash of what it is for."""

from __future__ import annotations

import hashlib
import json

import torch


def derive(*purpose: str | int) -> int:
    """A 63-bit seed from (run seed, round, client, purpose …): the same on every machine, in any order of use."""
    digest = hashlib.sha256(json.dumps(purpose).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(*purpose: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(derive(*purpose))
