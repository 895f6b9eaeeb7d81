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

LOOPBACK = ("127.0.0.1", "localhost", "::1")
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
EXEMPTIONS = ("no_proxy", "NO_PROXY", "no_grpc_proxy")


def proxy_exemptions(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables that exempt loopback addresses from the proxies of an environment.

    Flower's processes reach their own children on a loopback port over HTTP, and would ask HTTP_PROXY for it.
    """
    listed = [host.strip() for key in EXEMPTIONS for host in environment.get(key, "").split(",")]
    hosts = ",".join(dict.fromkeys([*filter(None, listed), *LOOPBACK]))
    return dict.fromkeys(EXEMPTIONS, hosts)


def without_proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for processes that talk to loopback addresses only."""
    return {key: value for key, value in environment.items() if key.lower() not in PROXIES}


def chatter(environment: Mapping[str, str]) -> str:
    """What Flower may tell others from this process, and how to turn it off."""
    on = {name: f"{key}={off}" for name, (key, off) in SWITCHES.items() if environment.get(key) != off}
    if not on:
        return f"Flower's {', '.join(SWITCHES)} are off"
    return f"Flower's {', '.join(on)} may be on: {' '.join(on.values())} in its environment turns them off"
