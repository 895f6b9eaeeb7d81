"""Checkpoints of a fine-tuning, each one file.

    checkpoints/00012000.safetensors    weights and momenta after 12,000 iterations

Files are written atomically, with their SHA-256 in the header; a file that does not match it is not
used. The last two are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from fedssl import nets
from fedssl.core.errors import ConfigError, RunError

KEPT = 2
MOMENTUM = "momentum/"  # prefix of the names of momenta; no weight has it


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
        return sorted(self.folder.glob("*.safetensors"), reverse=True)

    def save(
        self, iteration: int, weights: Mapping[str, Tensor], momenta: Mapping[str, Tensor]
    ) -> None:
        """Write a checkpoint and delete those before the last two."""
        tensors = dict(weights)
        for name, momentum in momenta.items():
            tensors[MOMENTUM + name] = momentum
        nets.save_backbone(tensors, self.folder / f"{iteration:08d}.safetensors", {})
        for old in self.files()[KEPT:]:
            old.unlink()

    def load(self, notify: Callable[[str], None]) -> Checkpoint | None:
        """Return the newest intact checkpoint, or None if there are no files.

        A RunError if there are files but all are damaged.
        """
        files = self.files()
        for file in files:
            try:
                _, tensors = nets.read_weights(file)
            except ConfigError:
                notify(f"{file} is damaged; trying the previous checkpoint")
                continue
            iteration = file.stem.partition("-")[0]  # earlier versions appended a hash
            return _split(int(iteration), tensors)
        if files:
            raise RunError(
                f"all checkpoints in {self.folder} are damaged; no file was changed. "
                "Start again in a new directory"
            )
        return None


def _split(iteration: int, tensors: Mapping[str, Tensor]) -> Checkpoint:
    """Separate weights and momenta by the prefix of their names."""
    weights = {}
    momenta = {}
    for name, tensor in tensors.items():
        if name.startswith(MOMENTUM):
            momenta[name.removeprefix(MOMENTUM)] = tensor
        else:
            weights[name] = tensor
    return Checkpoint(iteration, weights, momenta)
