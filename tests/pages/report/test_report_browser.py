"""A report in Chromium: it draws, reacts, loads nothing, and fits on a phone.

    RECORD_SCREENSHOTS=1 pytest --all tests/pages/report/test_report_browser.py

also writes the pictures of docs/how-to/report.md.
"""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from factories import random_pixels
from PIL import Image
from tiny_runs import Go

import fedssl
from fedssl.core.console import ignore_message
from fedssl.pages.report.report import report

webdriver = pytest.importorskip("selenium.webdriver")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # sockets of the driver
    pytest.mark.skipif(
        shutil.which("chromium") is None or shutil.which("chromedriver") is None,
        reason="Chromium is not installed",
    ),
]

PICTURES = Path(__file__).parents[3] / "docs/how-to"
MAX_PICTURE = 300_000  # bytes
MAX_PAGE = 2_000_000
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync --hide-scrollbars"
)
# The number of pixels of a canvas that are not transparent.
DRAWN = """
const canvas = arguments[0];
const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
return data.filter((value, place) => place % 4 === 3 && value > 0).length;
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the report of a short run of the demo."""
    folder = tmp_path_factory.mktemp("runs") / "demo"
    fedssl.run("demo", folder, "cpu", quiet=True, set={"rounds": 8, "probe.picture": False})
    return report(folder, device="cpu", notify=ignore_message)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in (*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


def _open(browser: Any, page: Path, *, width: int = 1200, scheme: str = "light") -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get_log("performance")
    browser.get(page.as_uri())


def _all(browser: Any, selector: str) -> list[Any]:
    elements: list[Any] = browser.find_elements("css selector", selector)
    return elements


def _click(browser: Any, selector: str) -> None:
    browser.execute_script("document.querySelector(arguments[0]).click()", selector)


def _requested(browser: Any) -> set[str]:
    """Return the addresses that the browser asked for since the page was opened."""
    addresses = set()
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            addresses.add(message["params"]["request"]["url"].split("#")[0])
    return addresses


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_draws_everything_and_asks_for_nothing_else(
    browser: Any, page: Path, scheme: str
) -> None:
    _open(browser, page, scheme=scheme)
    charts = _all(browser, "[data-chart] canvas")
    maps = _all(browser, "canvas[data-map]")
    assert (len(charts), len(maps)) == (10, 2)
    for canvas in (*charts, *maps):
        assert browser.execute_script(DRAWN, canvas) > 1000
    assert browser.get_log("browser") == []
    other = {address for address in _requested(browser) if not address.startswith("data:")}
    assert other == {page.as_uri()}
    assert page.stat().st_size < MAX_PAGE


def test_the_policy_blocks_requests_scripts_and_styles(browser: Any, page: Path) -> None:
    _open(browser, page)
    blocked = browser.execute_async_script("""
        const done = arguments[0];
        const blocked = [];
        document.addEventListener("securitypolicyviolation", (event) => {
          blocked.push(event.effectiveDirective);
        });
        document.body.insertAdjacentHTML("beforeend",
          '<img src="http://127.0.0.1:9/a.png"><p style="color:red" onclick="window.ran = 1">');
        document.body.lastElementChild.click();
        fetch("http://127.0.0.1:9/b").catch(() => setTimeout(() => done(blocked), 200));
    """)
    assert set(blocked) == {"img-src", "connect-src", "style-src-attr", "script-src-attr"}
    assert browser.execute_script("return window.ran") is None
    browser.get_log("browser")


def test_colours_and_clients_can_be_switched(browser: Any, page: Path) -> None:
    _open(browser, page)
    canvas = _all(browser, "canvas[data-map=after]")[0]
    by_class = browser.execute_script("return arguments[0].toDataURL()", canvas)
    _click(browser, "[data-colour=client]")
    assert canvas.get_attribute("data-drawn") == "client"
    assert browser.execute_script("return arguments[0].toDataURL()", canvas) != by_class
    names = [item.text for item in _all(browser, "[data-map-legend] li")]
    assert names == [f"client {number}" for number in range(5)]
    assert _shown_lines(browser) == 7  # five clients, their mean, random guessing
    _click(browser, "[data-client='0']")
    assert _shown_lines(browser) == 6
    _click(browser, "[data-clients=none]")
    assert _shown_lines(browser) == 2
    _click(browser, "[data-clients=all]")
    assert _shown_lines(browser) == 7


def _shown_lines(browser: Any) -> int:
    """Return the number of lines that the tooltip of the chart of losses lists."""
    count: int = browser.execute_script("""
        const chart = document.querySelector("[data-chart=client-loss] .u-over");
        const box = chart.getBoundingClientRect();
        const at = (x) => ({clientX: box.left + x, clientY: box.top + 50, bubbles: true});
        chart.dispatchEvent(new MouseEvent("mouseenter", at(1)));
        chart.dispatchEvent(new MouseEvent("mousemove", at(box.width / 2 + 40 * Math.random())));
        return chart.querySelectorAll(".chart-tooltip div").length;
    """)
    return count


def test_arrow_keys_go_from_image_to_image(browser: Any, page: Path) -> None:
    _open(browser, page)
    canvas = _all(browser, "canvas[data-map=before]")[0]
    status = _all(browser, "[data-map-status]")[0]
    canvas.send_keys("\ue014\ue014")  # twice to the right
    assert status.text.startswith("test image 1: ")
    canvas.send_keys("\ue012\ue012")
    assert status.text.startswith("test image 999: ")
    assert _all(browser, ".map-tooltip.shown .map-picture")


@pytest.mark.parametrize("width", [360, 768])
def test_a_narrow_page_does_not_scroll_sideways(browser: Any, page: Path, width: int) -> None:
    _open(browser, page, width=width)
    browser.execute_script("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    assert browser.execute_script("return document.documentElement.scrollWidth") == width


def test_neighbouring_ticks_differ(browser: Any, page: Path) -> None:
    """Labels have the decimals of the distance between ticks."""
    _open(browser, page)
    labels = {
        "[0, 0.0005, 0.001, 0.0015, 0.002], 0.0005": "0.0000 0.0005 0.0010 0.0015 0.0020",
        "[0.3, 0.325], 0.025": "0.300 0.325",
        "[0, 1e-7, 2.5e-7], 5e-8": "0 1.0e-7 2.5e-7",
        "[-20, 0, 12000], 1000": "-20 0 12,000",
    }
    for ticks, expected in labels.items():
        assert browser.execute_script(f"return tickLabels({ticks}).join(' ')") == expected


def test_a_shadow_marks_the_edge_where_a_table_is_cut(browser: Any, page: Path) -> None:
    """It is on the right at first, and on the left once the table is scrolled to its end."""
    _open(browser, page, width=360)
    tables = []
    for region in _all(browser, ".scroll"):
        if browser.execute_script("return arguments[0].scrollWidth > 360", region):
            tables.append(region)
    assert _edges(tables[0]) == ("plain", "shadow")
    browser.execute_script("arguments[0].scrollLeft = 9999", tables[0])
    assert _edges(tables[0]) == ("shadow", "plain")


def _edges(region: Any) -> tuple[str, str]:
    """Return whether the empty top corners of a region are the page's white or shaded."""
    with Image.open(io.BytesIO(region.screenshot_as_png)) as picture:
        grey = picture.convert("L")
        corners = (grey.getpixel((1, 1)), grey.getpixel((grey.width - 3, 1)))
    left, right = ("plain" if corner == 255 else "shadow" for corner in corners)
    return left, right


def test_names_of_clients_run_no_script(browser: Any, go: Go) -> None:
    owned = {}
    for number, name in enumerate(
        ("</script><script>ran = 1</script>", "<img src=x onerror=ran=1>")
    ):
        owned[name] = random_pixels(16, number)
    _open(browser, report(go(dataset=owned).dir, notify=ignore_message))
    assert browser.execute_script("return window.ran") is None
    assert _all(browser, "[data-client='1']")[0].text == "<img src=x onerror=ran=1>"
    assert _shown_lines(browser) == 3
    assert browser.get_log("browser") == []


@pytest.mark.skipif(
    "RECORD_SCREENSHOTS" not in os.environ, reason="writes the pictures of the docs"
)
def test_write_the_pictures_of_the_documentation(browser: Any, page: Path) -> None:
    _open(browser, page)
    _save(browser, "report-light.png", "main", 1200, height=1500)
    _open(browser, page, scheme="dark")
    _save(browser, "report-curves.png", "#rounds", 1200, height=760)
    _open(browser, page)
    _all(browser, "canvas[data-map=after]")[0].send_keys("\ue014" * 3)
    _save(browser, "report-map.png", "#map", 1200, height=780)
    _open(browser, page, width=360)
    _save(browser, "report-phone.png", "main", 360, height=1100)


def _save(browser: Any, name: str, selector: str, width: int, *, height: int) -> None:
    """Save the part of the page from the top of an element."""
    top = browser.execute_script(
        "return document.querySelector(arguments[0]).getBoundingClientRect().top + scrollY",
        selector,
    )
    clip = {"x": 0, "y": top, "width": width, "height": height, "scale": 1}
    options = {"format": "png", "captureBeyondViewport": True, "clip": clip}
    data = base64.b64decode(browser.execute_cdp_cmd("Page.captureScreenshot", options)["data"])
    assert len(data) < MAX_PICTURE
    (PICTURES / name).write_bytes(data)
