"""Settings of the guard: what an upload must satisfy before it is averaged."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator

from fedssl.core.settings import Settings


class GuardSettings(Settings):
    """Limits on uploads, besides that they match the algorithm's schema and are finite."""

    earlier_names: ClassVar = {"typical": "usual"}

    # The largest norm of an update, in medians over a round's clients; 0: any.
    norm_bound: float = Field(10.0, ge=0)
    # Which median: the largest of all rounds so far, or the last round's.
    typical: Literal["largest", "last"] = "largest"
    # Scale an update above the bound down to it; otherwise its client is dropped.
    clip: bool = False
    # The largest shift of running statistics, in medians; 0: any.
    statistics_bound: float = Field(5.0, ge=0)
    # Valid uploads that a server needs to merge; with fewer the round fails.
    min_uploads: int = Field(2, ge=1)
    # One client's largest share of all clients asked; 0.5 on Flower, otherwise 1.
    max_share: float | None = Field(None, gt=0, le=1)

    @field_validator("norm_bound", "statistics_bound")
    @classmethod
    def _above_the_median(cls, bound: float) -> float:
        if 0 < bound < 1:
            raise ValueError(
                "must be 0 (no bound) or at least 1: below 1, half of the clients would be dropped"
            )
        return bound


NO_BOUNDS = GuardSettings(norm_bound=0, statistics_bound=0)
