"""Telemetry is off, and loopback addresses are exempt from proxies."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedssl.flower import app_pinning
from fedssl.flower.local_processes import local_processes
from fedssl.flower.telemetry import TELEMETRY_OFF, describe_telemetry

PROXY = (
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "ALL_PROXY",
    "all_proxy",
    "grpc_proxy",
)


REQUEST = "import httpx, sys; print(httpx.get(sys.argv[1], timeout=10).status_code)"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...


@pytest.mark.rows("C4")
def test_features_that_contact_others_are_described() -> None:
    assert describe_telemetry(TELEMETRY_OFF).endswith("are off")
    assert "telemetry may be on; set FLWR_TELEMETRY_ENABLED=0 in" in describe_telemetry(
        {**TELEMETRY_OFF, "FLWR_TELEMETRY_ENABLED": "1"}
    )
    assert "update check" in describe_telemetry({})


@pytest.fixture
def loopback(tmp_path: Path) -> Iterator[str]:
    """The address of an HTTP server on the loopback address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
def test_flowers_processes_reach_loopback_without_the_proxy(variable: str, loopback: str) -> None:
    """Flower's processes use httpx to reach each other. Nothing listens on port 9."""
    base = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    environment = app_pinning.flower_environment(None, {**base, variable: "http://127.0.0.1:9"})
    result = subprocess.run(
        [sys.executable, "-c", REQUEST, loopback], env=environment, capture_output=True, text=True
    )
    assert (result.stdout, result.stderr) == ("200\n", "")


def test_hosts_that_need_no_proxy_are_kept() -> None:
    base = {
        "NO_PROXY": "example.org, 10.0.0.1",
        "no_proxy": "10.0.0.1",
        "HTTPS_PROXY": "http://proxy:3128",
    }
    environment = app_pinning.flower_environment(None, base)
    hosts = "10.0.0.1,example.org,127.0.0.1,localhost,::1"
    assert environment["NO_PROXY"] == hosts
    assert environment["no_proxy"] == hosts
    # A SuperNode may need it to reach the server.
    assert environment["HTTPS_PROXY"] == "http://proxy:3128"


def test_a_federation_on_this_machine_uses_no_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """httpx raises for a SOCKS proxy if the package for SOCKS is missing."""
    for variable in PROXY:
        monkeypatch.setenv(variable, "socks5://127.0.0.1:9")
    with local_processes(tmp_path) as processes:
        assert not set(PROXY) & processes.environment().keys()
