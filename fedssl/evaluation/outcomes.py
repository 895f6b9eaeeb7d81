"""outcomes.safetensors: which test images each probe of each row of a run classified correctly.

Runs that were measured on the same images can be compared image by image. A value is the share of
the row's models that classify the image correctly; it contains nothing of the image itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from fedssl.core.files.atomic import write_atomic
from fedssl.evaluation.score import Score

OUTCOMES = "outcomes.safetensors"

Outcomes = dict[tuple[str, str], Tensor]  # (row, probe) -> shares (n,)


def outcomes_of(scores: Mapping[str, Mapping[str, Score]]) -> Outcomes:
    """Return the outcomes of scores by row and probe."""
    outcomes = {}
    for row, probes in scores.items():
        for probe, score in probes.items():
            outcomes[row, probe] = score.correct
    return outcomes


def write_outcomes(folder: Path, outcomes: Outcomes) -> None:
    """Write the outcomes of every row and probe."""
    tensors = {f"{row}/{probe}": shares for (row, probe), shares in outcomes.items()}
    write_atomic(folder / OUTCOMES, safetensors.torch.save(tensors))


def read_outcomes(folder: Path) -> Outcomes:
    """Return the outcomes of a run; empty if it has none, or if the file is damaged."""
    try:
        tensors = safetensors.torch.load((folder / OUTCOMES).read_bytes())
    except (OSError, ValueError, safetensors.SafetensorError):
        return {}
    outcomes = {}
    for key, shares in tensors.items():
        row, _, probe = key.rpartition("/")
        outcomes[row, probe] = shares.float()
    return outcomes
