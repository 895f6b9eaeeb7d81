"""Warnings about a training that does not learn, from the lines of the rounds log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fedssl.algorithm import Algorithm
from fedssl.method import Method
from fedssl.runs.chance_warning import NearChance
from fedssl.runs.collapse_warning import Collapse
from fedssl.runs.rounds_log import read_rounds


class RoundWarnings:
    """Detect collapse, and a loss near chance if the method is known, after each round.

    The lines of a log that exists already are those of a run that is resumed.
    """

    def __init__(self, algorithm: Algorithm, method: Method | None, log: Path) -> None:
        self._detectors: list[Collapse | NearChance] = [Collapse(read_rounds(log))]
        if method is not None:
            chance_loss = partial(algorithm.chance_loss, method)
            self._detectors.append(NearChance(chance_loss, read_rounds(log)))

    def update(self, line: Mapping[str, Any]) -> Iterator[str]:
        """Add a round; yield the warnings that it causes."""
        for detector in self._detectors:
            warning = detector.update(line)
            if warning is not None:
                yield warning
