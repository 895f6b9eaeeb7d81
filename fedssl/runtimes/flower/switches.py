"""What Flower's processes tell others, or fetch from them, unless they are told not to."""

from __future__ import annotations

from collections.abc import Mapping

SWITCHES = {  # of the environment, and how each is turned off
    "telemetry": ("FLWR_TELEMETRY_ENABLED", "0"),
    "update check": ("FLWR_DISABLE_UPDATE_CHECK", "1"),
    "installation of packages at run time": ("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "1"),
}
QUIET = dict(SWITCHES.values())
QUIET_TEXT = " ".join(f"{key}={off}" for key, off in QUIET.items())  # for a shell


def chatter(environment: Mapping[str, str]) -> str:
    """What Flower may tell others from this process, and how to turn it off."""
    on = {name: f"{key}={off}" for name, (key, off) in SWITCHES.items() if environment.get(key) != off}
    if not on:
        return f"Flower's {', '.join(SWITCHES)} are off"
    return f"Flower's {', '.join(on)} may be on: {' '.join(on.values())} in its environment turns them off"
