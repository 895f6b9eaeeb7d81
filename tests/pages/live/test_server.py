"""The live page over HTTP on the loopback address, from the command that starts it."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from error_messages import raises
from watched_runs import round_line, write_run

from fedssl.core.errors import ConfigError
from fedssl.pages.live.server import FILES, open_port

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")


class Answer(NamedTuple):
    """A response."""

    status: int
    headers: dict[str, str]
    body: str


class Page(NamedTuple):
    """A live page that is served by another process."""

    process: subprocess.Popen[str]
    port: int
    token: str

    @contextlib.contextmanager
    def opened(self, path: str, **headers: str) -> Iterator[http.client.HTTPResponse]:
        """Yield the response to a request; `headers` replace those of a browser."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        cookie = f"fedssl-watch-{self.port}={self.token}"
        with contextlib.closing(connection):
            connection.request("GET", path, headers={"Cookie": cookie} | headers)
            with connection.getresponse() as response:
                yield response

    def get(self, path: str, **headers: str) -> Answer:
        """Return the response to a request."""
        with self.opened(path, **headers) as response:
            names = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, names, response.read().decode())


def _start(folder: Path, *options: str, state: Path) -> Page:
    process = subprocess.Popen(
        [sys.executable, "-m", "fedssl", "watch", str(folder), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"XDG_STATE_HOME": str(state)},
    )
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    match = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=([\w-]{43})", url)
    assert match is not None, url
    return Page(process, int(match[1]), match[2])


def _stop(page: Page, number: int = signal.SIGINT) -> tuple[float, str]:
    """Stop a page; return the seconds that it took, and what was printed on standard error."""
    start = time.monotonic()
    page.process.send_signal(number)
    _, errors = page.process.communicate(timeout=20)
    return time.monotonic() - start, errors


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    root = tmp_path_factory.mktemp("watch")
    started = _start(write_run(root / "run", round_line(1)), state=root)
    yield started
    if started.process.poll() is None:
        _stop(started)


def test_the_page_and_its_files_are_served(page: Page) -> None:
    answer = page.get(f"/?token={page.token}", Cookie="")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "server" not in answer.headers
    referenced = set(re.findall(r'(?:src|href)="assets/([\w.]+)"', answer.body))
    assert referenced == FILES.keys()
    for name in referenced:
        answer = page.get(f"/assets/{name}")
        assert answer.status == 200
        assert len(answer.body) > 100


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/assets/server.py", 404),
        ("/assets/../server.py", 404),
        ("/assets/%2e%2e%2fserver.py", 404),
        ("/rounds.jsonl", 404),
        ("/alive", 204),
    ],
)
def test_no_other_file_is_served(page: Page, path: str, status: int) -> None:
    assert page.get(path).status == status


def test_requests_without_the_token_or_with_another_host_are_refused(page: Page) -> None:
    assert page.get("/events", Cookie="").status == 403
    assert page.get("/?token=wrong", Cookie="").status == 403
    assert page.get("/", Host="attacker.example").status == 403


def test_the_port_is_on_the_loopback_address_only(page: Page) -> None:
    other = [info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)]
    addresses = [str(address) for address in other if not str(address).startswith("127.")]
    for address in [*addresses, "127.0.0.2"]:
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((address, page.port), timeout=5)


def test_ctrl_c_ends_the_streams_of_connected_browsers(page: Page) -> None:
    """The server does not have to cut the streams after a timeout, which would print a message.

    This test comes last, because it stops the page of this module.
    """
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(page.opened("/events")) for _ in range(3)]
        for stream in streams:
            assert stream.readline() == b"event: head\n"
        seconds, errors = _stop(page)
        for stream in streams:
            stream.read()  # raises an error if the stream was cut
    assert page.process.returncode == 0
    assert [line.partition(" ")[0] for line in errors.splitlines()] == ["watching"]
    assert seconds < 10  # a few tenths on a machine that is not busy


def test_a_chosen_port_keeps_its_token(tmp_path: Path) -> None:
    with open_port(0) as free:
        port = free.getsockname()[1]
    pages = []
    for _ in range(2):
        pages.append(_start(tmp_path / "later", "--port", str(port), state=tmp_path))
        _, errors = _stop(pages[-1], signal.SIGTERM)
        assert "does not exist yet; the page waits for it" in errors
    assert pages[0].port == pages[1].port == port
    assert pages[0].token == pages[1].token


def test_a_port_in_use_is_reported() -> None:
    with open_port(0) as used:
        used.listen()
        with raises(ConfigError):
            open_port(used.getsockname()[1])


def test_a_file_is_no_run_directory(cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.touch()
    code, _, errors = cli("watch", str(path))
    assert code == 2
    assert "is a file: name a run directory" in errors


def test_a_folder_of_runs_is_no_run_directory(cli: Any, tmp_path: Path) -> None:
    for seed in ("seed1", "seed0"):
        (tmp_path / seed).mkdir()
        (tmp_path / seed / "experiment.toml").touch()
    code, _, errors = cli("watch", str(tmp_path))
    assert code == 2
    assert f"contains 2: name one, such as {tmp_path / 'seed0'}" in errors
