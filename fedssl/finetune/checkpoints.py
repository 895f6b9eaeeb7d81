"""Where a fine-tuning stands, in one file that names its own hash.

    checkpoints/00012000-3f2a….safetensors    weights and momenta after 12,000 iterations, and the SHA-256 of the file

A file appears under its name whole or not at all; one whose bytes do not have the hash of its name is not used. The
last two are kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from safetensors.torch import load, save
from torch import Tensor

from fedssl.errors import RunError
from fedssl.store import write_atomic

KEPT = 2
MOMENTUM = "momentum/"  # before the names of momenta; weights have none
DIGITS = 32  # of the hash, in a name


class Checkpoint(NamedTuple):
    iteration: int
    weights: dict[str, Tensor]
    momenta: dict[str, Tensor]


class Checkpoints:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def files(self) -> list[Path]:
        """The newest first."""
        return sorted(self.folder.glob("*-*.safetensors"), reverse=True)

    def save(self, iteration: int, weights: Mapping[str, Tensor], momenta: Mapping[str, Tensor]) -> None:
        tensors = dict(weights) | {MOMENTUM + name: tensor for name, tensor in momenta.items()}
        data = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"{iteration:08d}-{hashlib.sha256(data).hexdigest()[:DIGITS]}.safetensors"
        write_atomic(self.folder / name, data)
        for old in self.files()[KEPT:]:
            old.unlink()

    def load(self, say: Callable[[str], None]) -> Checkpoint | None:
        """The newest that is whole; None if there never was one."""
        files = self.files()
        for file in files:
            iteration, _, digest = file.stem.partition("-")
            data = file.read_bytes()
            if hashlib.sha256(data).hexdigest()[:DIGITS] != digest:
                say(f"{file} is damaged; trying the one before")
                continue
            tensors = load(data)
            momenta = {k.removeprefix(MOMENTUM): v for k, v in tensors.items() if k.startswith(MOMENTUM)}
            weights = {name: tensor for name, tensor in tensors.items() if not name.startswith(MOMENTUM)}
            return Checkpoint(int(iteration), weights, momenta)
        if files:
            raise RunError(f"no checkpoint in {self.folder} is whole; nothing was changed. Start again in a new one")
        return None
