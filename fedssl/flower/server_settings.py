"""Settings of the server in the configuration of an app."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from fedssl.core.settings import Settings, validate


class ServerSettings(Settings):
    """[tool.flwr.app.config] of an app, with underscores instead of dashes."""

    run_dir: str = "runs/flower"  # on the server's disk
    # Where the server finds the experiment's labelled images for evaluation; empty: it has none.
    data_dir: str = ""
    memory_dir: str = ""  # of nodes without one in their configuration, as in Flower's simulation
    device: str = "auto"
    # To wait for; all that are connected by then take part; 0: the experiment's number.
    clients: int = Field(0, ge=0)
    join_timeout: float = Field(600.0, gt=0)  # seconds
    round_timeout: float = Field(3600.0, gt=0)  # seconds
    # The share of the clients asked that must answer, or the round fails.
    quorum: float = Field(0.5, ge=0, le=1)
    track: str = ""  # trackers, comma-separated; empty: none
    # True: the server receives sums of masked uploads only.
    secure_aggregation: bool = False
    # More than this share of the clients that exchanged keys is needed to unmask a sum.
    secure_threshold: float = Field(0.67, ge=0.5, lt=1)

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> ServerSettings:
        """Return the settings in an app's config, whose keys have dashes."""
        values = {key.replace("-", "_"): value for key, value in config.items()}
        return validate(cls, values, "tool.flwr.app.config")
