"""The policy of a page allows its own styles and scripts, and nothing from a network."""

from __future__ import annotations

import base64
import hashlib
import re
from html import unescape

from fedssl.pages.report.document import Document, Part

PAGE = Document("a title", ["head"], [Part("first", "First", "1st", ["text"])], {}).render()


def _policy() -> str:
    found = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', PAGE)
    assert found is not None
    return unescape(found[1])


def test_the_policy_allows_the_styles_and_scripts_of_the_page_by_hash() -> None:
    """The hash of an element is that of the text between its tags."""
    for kind, attributes in (("style", ""), ("script", "")):
        elements = re.findall(rf"<{kind}{attributes}>(.*?)</{kind}>", PAGE, re.DOTALL)
        hashes = []
        for text in elements:
            digest = hashlib.sha256(text.encode()).digest()
            hashes.append(f"'sha256-{base64.b64encode(digest).decode()}'")
        assert f"{kind}-src {' '.join(hashes)};" in _policy()


def test_the_policy_denies_everything_else() -> None:
    rules = dict(rule.split(" ", 1) for rule in _policy().split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    assert "unsafe" not in _policy()
    assert "http" not in _policy()


def test_the_page_has_no_address_and_no_inline_style() -> None:
    """A link to a license in a comment of the vendored library is loaded by nothing."""
    tags = re.sub(r"<(script|style)\b.*?</\1>", "", PAGE, flags=re.DOTALL)
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", tags)
    assert " style=" not in tags
    assert " onclick=" not in tags


def test_links_lead_to_the_sections() -> None:
    assert '<a href="#first">1st</a>' in PAGE
    assert '<section id="first" aria-labelledby="first-title">' in PAGE


def test_the_page_has_the_license_of_the_library_in_it() -> None:
    assert "Permission is hereby granted, free of charge" in PAGE
