"""The result of one attack, compared with guessing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

NO_TEST = "this describes one attack on these images and is not a test"


class Strip(NamedTuple):
    """Images to show next to each other, column by column; float in 0…1, (n, C, H, W)."""

    rows: Mapping[str, Tensor]  # by their label


class AttackResult(NamedTuple):
    """One line of the report. `details` are plain values, without pixels, for audit.json."""

    attack: str
    case: str
    result: str
    guessing: str
    meaning: str  # one sentence
    details: Mapping[str, Any]
    strip: Strip | None = None

    @property
    def name(self) -> str:
        """The attack and its case."""
        return f"{self.attack}, {self.case}" if self.case else self.attack


def not_measured(attack: str, case: str, reason: str) -> AttackResult:
    """Return the result of an attack that does not apply, or that could not be measured."""
    return AttackResult(attack, case, "–", "–", f"not measured: {reason}", {"reason": reason})


def closer_than_guesses(attacked: str, wins: int, count: int, unit: str) -> str:
    """Return the sentence on how often an attack is closer to the original than the guesses.

    It is no test: attacked images share candidates and a step, so their wins are not independent.
    """
    if not wins:
        text = f"{attacked}: no closer to the original than the guesses for any of {count} {unit}"
    else:
        text = f"{attacked}: closer to the original than the guesses for {wins} of {count} {unit}"
    return f"{text}; {NO_TEST}"
