"""Environment variables that turn off Flower's telemetry and downloads, and its use of proxies."""

from __future__ import annotations

from collections.abc import Mapping

SWITCHES = {  # feature -> the variable and the value that turn it off
    "telemetry": ("FLWR_TELEMETRY_ENABLED", "0"),
    "update check": ("FLWR_DISABLE_UPDATE_CHECK", "1"),
    "installation of packages at run time": ("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "1"),
}
TELEMETRY_OFF = dict(SWITCHES.values())
TELEMETRY_OFF_TEXT = " ".join(f"{key}={off}" for key, off in TELEMETRY_OFF.items())  # for a shell

LOOPBACK = ("127.0.0.1", "localhost", "::1")
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
EXEMPTIONS = ("no_proxy", "NO_PROXY", "no_grpc_proxy")


def proxy_exemptions(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables that exempt loopback addresses from the proxies of an environment.

    Flower's processes reach their children on a loopback port over HTTP; without an exemption the
    requests would go to HTTP_PROXY.
    """
    hosts: list[str] = []
    for variable in EXEMPTIONS:
        hosts += environment.get(variable, "").split(",")
    hosts = [host.strip() for host in hosts]
    unique = dict.fromkeys([*filter(None, hosts), *LOOPBACK])
    return dict.fromkeys(EXEMPTIONS, ",".join(unique))


def without_proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for processes that use loopback addresses only."""
    return {key: value for key, value in environment.items() if key.lower() not in PROXIES}


def describe_telemetry(environment: Mapping[str, str]) -> str:
    """Return which Flower features may contact other hosts, and how to turn them off."""
    features: list[str] = []
    assignments: list[str] = []
    for feature, (variable, off) in SWITCHES.items():
        if environment.get(variable) != off:
            features.append(feature)
            assignments.append(f"{variable}={off}")
    if not features:
        return f"Flower's {', '.join(SWITCHES)} are off"
    return (
        f"Flower's {', '.join(features)} may be on; "
        f"set {' '.join(assignments)} in its environment to turn them off"
    )
