"""The live page in Chromium, next to a run that trains, stops, resumes and ends.

    RECORD_SCREENSHOTS=1 pytest --all tests/pages/live/test_browser.py

also takes the screenshots of docs/how-to/watch.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

webdriver = pytest.importorskip("selenium.webdriver")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

CHROMIUM = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.oracle,
    pytest.mark.timeout(420),
    pytest.mark.skipif(
        CHROMIUM is None or DRIVER is None, reason="chromium or chromedriver is missing"
    ),
]

SCREENSHOTS = Path(__file__).parents[3] / "docs/how-to"
LIVE_RUN = Path(__file__).parent / "live_run.py"
ROUNDS = 10
PHONE = (360, 740)
DESKTOP = (1100, 800)
MAX_SCREENSHOT = 300_000  # bytes
SWITCHES = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


class Browser:
    """A new Chromium that shows one page."""

    def __init__(self, profile: Path) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for switch in (*SWITCHES, f"--user-data-dir={profile}"):
            options.add_argument(switch)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))

    def resize(self, width: int, height: int, scheme: str = "light") -> None:
        """Show the page on a screen of this size, in light or dark colours."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        time.sleep(1.0)  # charts are drawn again

    def js(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        return self.driver.execute_script(f"return {expression}")

    def text(self, element: str) -> str:
        """Return the text of the element with an id."""
        return str(self.js(f"document.getElementById('{element}').textContent"))

    def wait(self, what: str, accept: Callable[[], bool], seconds: float = 120.0) -> None:
        """Wait until the page shows something."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if accept():
                return
            time.sleep(0.2)
        shown = self.js("document.body.innerText")
        raise AssertionError(f"the page does not show {what}:\n{shown}")

    def wait_for_state(self, label: str) -> None:
        """Wait until the page shows a state of the run."""
        self.wait(label, lambda: self.text("state") == label)

    def finished_rounds(self) -> int:
        """Return the number of finished rounds, from the title of the tab."""
        match = re.match(r"(\d+)/", self.driver.title)
        return int(match[1]) if match else 0

    def rows(self) -> dict[str, str]:
        """Return the state of each client in the table."""
        script = """[...document.querySelectorAll('#client-rows tr')].map(
            (row) => [row.querySelector('.name').textContent,
                      row.querySelector('.badge').dataset.state])"""
        return dict(self.js(script))

    def screenshot(self, name: str, size: tuple[int, int], scheme: str) -> None:
        """Take a screenshot in the middle of a round, if screenshots are recorded."""
        if not os.environ.get("RECORD_SCREENSHOTS"):
            return
        self.resize(*size, scheme)
        half = "document.getElementById('replied').textContent.match(/^[4-7] of 10/) !== null"
        self.wait("half a round", lambda: bool(self.js(half)))
        path = SCREENSHOTS / name
        self.driver.save_screenshot(str(path))
        assert path.stat().st_size < MAX_SCREENSHOT

    def errors(self) -> list[str]:
        """Return the errors on the console since the last call."""
        entries = self.driver.get_log("browser")
        return [entry["message"] for entry in entries if entry["level"] == "SEVERE"]

    def requested(self) -> set[str]:
        """Return the URLs of all requests since the last call, without the browser's own pages."""
        urls = set()
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = message["params"]["request"]["url"]
                if not url.startswith(("chrome:", "chrome-untrusted:", "data:")):
                    urls.add(url)
        return urls


@pytest.fixture
def browser() -> Iterator[Browser]:
    with tempfile.TemporaryDirectory() as profile:
        opened = Browser(Path(profile))
        try:
            yield opened
        finally:
            opened.driver.quit()


@contextlib.contextmanager
def _process(*command: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Start Python with a command, and end it after the block."""
    started = subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | variables,
    )
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


@contextlib.contextmanager
def _watched(folder: Path, state: Path, port: int = 0) -> Iterator[str]:
    """Serve the live page of a folder; yield its URL."""
    command = ("-m", "fedssl", "watch", str(folder), "--port", str(port))
    with _process(*command, XDG_STATE_HOME=str(state)) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()


@contextlib.contextmanager
def _training(folder: Path) -> Iterator[subprocess.Popen[str]]:
    with _process(str(LIVE_RUN), str(folder), str(ROUNDS)) as run:
        yield run


def _interrupt(run: subprocess.Popen[str]) -> None:
    run.send_signal(signal.SIGINT)
    run.wait(60)


def test_a_run_from_its_start_to_its_end(browser: Browser, tmp_path: Path) -> None:
    folder = tmp_path / "runs/hospitals"
    with _watched(folder, tmp_path) as url:
        browser.resize(*DESKTOP)
        browser.driver.get(url)
        browser.wait_for_state("Waiting")
        assert browser.text("detail") == "The directory does not exist yet."
        assert browser.js("location.href") == url.partition("?")[0]  # the token is not kept there
        with _training(folder) as run:
            _check_training(browser)
            _interrupt(run)
        browser.wait_for_state("Stopped")
        rounds = browser.finished_rounds()
        assert browser.text("detail").startswith(f"It stopped after round {rounds}.")
        with _training(folder) as run:
            browser.wait("more rounds", lambda: browser.finished_rounds() > rounds)
            _check_phone(browser)
            assert run.wait(200) == 0
        browser.wait_for_state("Finished")
        assert browser.finished_rounds() == ROUNDS
        assert "by kNN, 200 test images" in browser.text("detail")
        assert browser.errors() == []
        origin = url.partition("/?")[0]
        urls = browser.requested()
        assert f"{origin}/events" in urls
        assert [each for each in urls if not each.startswith(f"{origin}/")] == []


def _check_training(browser: Browser) -> None:
    """Watch the first rounds: metrics, charts and all clients."""
    browser.wait("rounds", lambda: browser.finished_rounds() >= 2)
    browser.wait("a client in training", lambda: "training" in browser.rows().values())
    rows = browser.rows()
    assert len(rows) == 10
    assert set(rows.values()) <= {"waiting", "training", "replied", "dropped"}
    titles = browser.js("[...document.querySelectorAll('.charts h2')].map((e) => e.textContent)")
    assert titles == [
        "Training loss",
        "kNN accuracy",
        "Divergence of clients",
        "Effective rank of features",
    ]
    browser.js("document.querySelectorAll('#filters button')[1].click()")
    browser.wait("the client with a problem", lambda: list(browser.rows()) == ["Ghent"])
    assert "too few images" in browser.text("client-rows")
    browser.js("document.querySelectorAll('#filters button')[0].click()")
    browser.js("document.querySelector('th[data-key=loss] button').click()")
    losses = (
        "[...document.querySelectorAll('#client-rows td:nth-child(4)')].map((e) => e.textContent)"
    )
    shown = [float(text) for text in browser.js(losses) if text != "–"]
    assert shown == sorted(shown, reverse=True)
    browser.js("document.querySelector('th[data-key=name] button').click()")
    browser.wait("four rounds", lambda: browser.finished_rounds() >= 4)
    browser.screenshot("watch-light.png", (1100, 1600), "light")
    browser.screenshot("watch-dark.png", (1100, 900), "dark")
    browser.resize(*DESKTOP)


def _check_phone(browser: Browser) -> None:
    """Show the page on a phone: nothing is wider than the screen."""
    browser.resize(*PHONE, "dark")
    assert browser.js("document.documentElement.scrollWidth") == 360
    wide = """[...document.querySelectorAll('main *')].filter(
        (e) => e.getBoundingClientRect().right > 361).map((e) => e.outerHTML.slice(0, 80))"""
    assert browser.js(wide) == []
    browser.screenshot("watch-phone.png", (360, 1120), "dark")
    browser.resize(*DESKTOP)


def test_a_page_connects_again_after_the_server_was_restarted(
    browser: Browser, tmp_path: Path
) -> None:
    """The page is not loaded again: a mark in it is kept."""
    folder = tmp_path / "run"
    with _watched(folder, tmp_path, _free_port()) as url:
        browser.driver.get(url)
        browser.wait_for_state("Waiting")
        browser.js("window.mark = 1")
    browser.wait("the loss", lambda: "The connection is lost" in browser.text("connection"))
    folder.mkdir()
    port = int(url.partition("/?")[0].rpartition(":")[2])
    with _watched(folder, tmp_path, port):
        browser.wait("the new state", lambda: "no process" in browser.text("detail"))
        assert browser.js("document.getElementById('connection').hidden")
        assert browser.js("window.mark") == 1
    shutil.rmtree(tmp_path / "fedssl")
    with _watched(folder, tmp_path, port):
        browser.wait("the new token", lambda: "a new token" in browser.text("connection"))


def test_a_wrong_token_shows_nothing(browser: Browser, tmp_path: Path) -> None:
    with _watched(tmp_path, tmp_path) as url:
        browser.driver.get(f"{url}x")
        assert browser.js("document.body.innerText").startswith("403: ")
        browser.driver.get(url.partition("?")[0])
        assert browser.js("document.body.innerText").startswith("403: ")


def test_text_of_clients_is_not_markup(browser: Browser, tmp_path: Path) -> None:
    """Names and reasons come from nodes that may be hostile."""
    from watched_runs import client_line, dropped_line, round_line, write_run

    name = "<img src=x onerror=window.hacked=1>"
    reason = "<script>window.hacked=1</script>"
    folder = write_run(
        tmp_path / "<b>run", round_line(1, client_line(name), dropped_line("b", reason))
    )
    with _watched(folder, tmp_path) as url:
        browser.driver.get(url)
        browser.wait("the clients", lambda: len(browser.rows()) == 2)
        assert name in browser.rows()
        assert reason in browser.text("client-rows")
        assert browser.text("title") == "<b>run"
        assert browser.js("window.hacked") is None
        assert browser.errors() == []


def test_a_thousand_clients_are_shown_fifty_at_a_time(browser: Browser, tmp_path: Path) -> None:
    from watched_runs import client_line, round_line, write_run

    clients = [client_line(f"client-{number}", loss=float(number)) for number in range(1000)]
    folder = write_run(tmp_path / "run", round_line(1, *clients))
    with _watched(folder, tmp_path) as url:
        browser.driver.get(url)
        browser.wait("the clients", lambda: len(browser.rows()) == 50)
        assert browser.text("page-text") == "1–50 of 1,000"
        browser.js("document.getElementById('next').click()")
        assert next(iter(browser.rows())) == "client-50"  # in the order of numbers
        browser.js("document.querySelector('th[data-key=loss] button').click()")
        assert next(iter(browser.rows())) == "client-999"
        browser.driver.find_element("id", "search").send_keys("client-77")
        expected = ["client-779", "client-778", "client-777", "client-776", "client-775"]
        assert list(browser.rows())[:5] == expected
        assert len(browser.rows()) == 11


def _free_port() -> int:
    from fedssl.pages.live.server import open_port

    with open_port(0) as free:
        return int(free.getsockname()[1])
