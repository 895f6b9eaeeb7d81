"""The steps that a trainer has done for its present client, for displays in other threads."""

from __future__ import annotations


class StepCount:
    """Counts the steps of one client after another; one thread writes, others read."""

    def __init__(self) -> None:
        self.done = 0
        self.planned = 0
        self.images_per_step = 0

    def begin(self, planned: int, images_per_step: int) -> None:
        """Count the steps of another client from 0."""
        self.done = 0
        self.planned = planned
        self.images_per_step = images_per_step
