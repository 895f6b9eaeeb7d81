"""Checkpoints of a fine-tuning, each one file with its hash in its name.

    checkpoints/00012000-3f2a….safetensors    weights and momenta after 12,000 iterations

Files are written atomically; a file whose bytes do not match the SHA-256 in its name is not used.
The last two are kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from safetensors.torch import load, save
from torch import Tensor

from fedssl.core.errors import RunError
from fedssl.core.files.atomic import write_atomic

KEPT = 2
MOMENTUM = "momentum/"  # prefix of the names of momenta; no weight has it
DIGITS = 32  # of the hash, in a file name


class Checkpoint(NamedTuple):
    """Weights and momenta after an iteration."""

    iteration: int
    weights: dict[str, Tensor]
    momenta: dict[str, Tensor]


class Checkpoints:
    """The checkpoints in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def files(self) -> list[Path]:
        """Return the files, newest first."""
        return sorted(self.folder.glob("*-*.safetensors"), reverse=True)

    def save(
        self, iteration: int, weights: Mapping[str, Tensor], momenta: Mapping[str, Tensor]
    ) -> None:
        """Write a checkpoint and delete those before the last two."""
        tensors = {}
        for name, weight in weights.items():
            tensors[name] = weight.detach().cpu().contiguous()
        for name, momentum in momenta.items():
            tensors[MOMENTUM + name] = momentum.detach().cpu().contiguous()
        data = save(tensors)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomic(self.folder / f"{iteration:08d}-{_digest(data)}.safetensors", data)
        for old in self.files()[KEPT:]:
            old.unlink()

    def load(self, notify: Callable[[str], None]) -> Checkpoint | None:
        """Return the newest intact checkpoint, or None if there are no files.

        A RunError if there are files but all are damaged.
        """
        files = self.files()
        for file in files:
            iteration, _, digest = file.stem.partition("-")
            data = file.read_bytes()
            if _digest(data) == digest:
                return _parse(int(iteration), data)
            notify(f"{file} is damaged; trying the previous checkpoint")
        if files:
            raise RunError(
                f"all checkpoints in {self.folder} are damaged; no file was changed. "
                "Start again in a new directory"
            )
        return None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGITS]


def _parse(iteration: int, data: bytes) -> Checkpoint:
    """Separate weights and momenta by the prefix of their names."""
    weights = {}
    momenta = {}
    for name, tensor in load(data).items():
        if name.startswith(MOMENTUM):
            momenta[name.removeprefix(MOMENTUM)] = tensor
        else:
            weights[name] = tensor
    return Checkpoint(iteration, weights, momenta)
