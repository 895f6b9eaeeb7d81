"""Assemble a report as one HTML file with its styles, scripts and data."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedssl.core.version import __version__
from fedssl.pages.report.markup import Content, Markup, join, json_script, section, tag

ASSETS = Path(__file__).parent.parent / "assets"
OWN = Path(__file__).parent
STYLES = (ASSETS / "page.css", ASSETS / "uplot.css", OWN / "report.css")
SCRIPTS = (ASSETS / "uplot.js", ASSETS / "charts.js", OWN / "feature_maps.js", OWN / "report.js")
NO_SCRIPT = "Charts and maps need JavaScript; the tables on this page do not."


class Part(NamedTuple):
    """A section of a page, and how the contents at its top call it."""

    anchor: str
    title: str
    link: str
    content: Sequence[Content]


class Document(NamedTuple):
    """A whole page."""

    title: str
    head: Sequence[Content]  # above the sections: what the page is about
    parts: Sequence[Part]
    data: Mapping[str, Any]  # of charts and maps

    def render(self) -> str:
        """Return the page as HTML.

        Its policy allows the styles and scripts of this file, by their hashes, and pictures that
        are part of it. A browser loads nothing else, whatever a text on the page contains.
        """
        styles = [path.read_text("utf-8") for path in STYLES]
        scripts = [_license(), *[path.read_text("utf-8") for path in SCRIPTS]]
        head = tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=_policy(styles, scripts)),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            tag("meta", name="referrer", content="no-referrer"),
            tag("meta", name="generator", content=f"fedssl {__version__}"),
            tag("title", self.title),
            tag("link", rel="icon", href="data:,"),
            *[tag("style", Markup(style)) for style in styles],
        )
        body = tag(
            "body",
            tag("a", "Skip to the contents", class_="skip", href="#main"),
            tag("main", *self._main(), id="main"),
            tag("footer", f"Made by fedssl {__version__}. This file loads nothing from a network."),
            json_script("report-data", self.data),
            *[tag("script", Markup(script)) for script in scripts],
        )
        return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"

    def _main(self) -> list[Markup]:
        links = []
        sections = []
        for part in self.parts:
            links.append(tag("li", tag("a", part.link, href=f"#{part.anchor}")))
            sections.append(section(part.anchor, part.title, *part.content))
        contents = tag("nav", tag("ul", *links), aria_label="Sections", class_="contents")
        noscript = tag("noscript", tag("p", NO_SCRIPT, class_="warning"))
        return [join(*self.head), contents, noscript, *sections]


def _license() -> str:
    """Return the license of the library in the page, as a comment: each copy must have it."""
    text = (ASSETS / "UPLOT_LICENSE").read_text("utf-8")
    return f"/* uPlot, the library that draws the charts:\n\n{text}*/\n"


def _policy(styles: Sequence[str], scripts: Sequence[str]) -> str:
    """Return a Content-Security-Policy that allows these styles and scripts only."""
    rules = {
        "default-src": "'none'",
        "img-src": "data:",
        "style-src": " ".join(map(_source_hash, styles)),
        "script-src": " ".join(map(_source_hash, scripts)),
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def _source_hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
