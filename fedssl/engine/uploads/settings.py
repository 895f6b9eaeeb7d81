"""Settings of the guard: what an upload must satisfy before it is averaged."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from fedssl.core.settings import Settings
from fedssl.core.suggestions import suggest

# Limits for clients of which one may be hostile; the reasons are in docs/explanation/guarantees.md.
STRICT: Mapping[str, Any] = MappingProxyType(
    {
        "norm_bound": 2.0,
        "typical": "last",
        "clip": True,
        "statistics_bound": 3.0,
        "statistics_floor": 1.0,
        "min_uploads": 3,
        "max_share": 0.34,
    }
)
PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"default": MappingProxyType({}), "strict": STRICT}
)


class GuardSettings(Settings):
    """Limits on uploads, besides that they match the algorithm's schema and are finite.

    The name of a preset, alone or as `preset` with other settings, is replaced by the settings of
    that preset, so that an experiment always shows the values themselves.
    """

    earlier_names: ClassVar = {"typical": "usual"}

    # The largest norm of an update, in medians over a round's clients; 0: any.
    norm_bound: float = Field(10.0, ge=0)
    # Which median: the largest of all rounds so far, or the last round's.
    typical: Literal["largest", "last"] = "largest"
    # Scale an update above the bound down to it; otherwise its client is dropped.
    clip: bool = False
    # The largest shift of running statistics, in medians; 0: any.
    statistics_bound: float = Field(5.0, ge=0)
    # Standard deviations by which running statistics may move in any case.
    statistics_floor: float = Field(1.5, gt=0)
    # Valid uploads that a server needs to merge; with fewer the round fails.
    min_uploads: int = Field(2, ge=1)
    # One client's largest share of all clients asked; 0.5 on Flower, otherwise 1.
    max_share: float | None = Field(None, gt=0, le=1)

    @model_validator(mode="before")
    @classmethod
    def _expand_preset(cls, values: Any) -> Any:
        if isinstance(values, str):
            values = {"preset": values}
        if not isinstance(values, Mapping) or "preset" not in values:
            return values
        own = {key: value for key, value in values.items() if key != "preset"}
        return {**preset_settings(values["preset"]), **own}

    @field_validator("norm_bound", "statistics_bound")
    @classmethod
    def _above_the_median(cls, bound: float) -> float:
        if 0 < bound < 1:
            raise ValueError(
                "must be 0 (no bound) or at least 1: below 1, half of the clients would be dropped"
            )
        return bound


def preset_settings(name: Any) -> Mapping[str, Any]:
    """Return the settings of a preset; raise ValueError for an unknown name."""
    if not isinstance(name, str) or name not in PRESETS:
        hint = suggest(str(name), PRESETS) or f"; known: {', '.join(PRESETS)}"
        raise ValueError(f'unknown guard preset "{name}"{hint}')
    return PRESETS[name]


NO_BOUNDS = GuardSettings(norm_bound=0, statistics_bound=0)
