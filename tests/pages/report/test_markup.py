"""Every text in a page is escaped, wherever it is."""

from __future__ import annotations

import json
import re

import pytest

from fedssl.pages.report.markup import Markup, copyable, join, json_script, table, tag

INJECTION = "</script><script>alert(1)</script>"


def test_text_and_attributes_are_escaped() -> None:
    built = tag("p", "<b>", title='"><i>', data_x=True, hidden=False, class_="a")
    assert built == '<p title="&quot;&gt;&lt;i&gt;" data-x class="a">&lt;b&gt;</p>'


def test_elements_are_not_escaped_twice() -> None:
    assert join(tag("b", "&"), "&", None) == "<b>&amp;</b>&amp;"


def test_void_elements_have_no_end() -> None:
    assert tag("img", src="data:,") == '<img src="data:,">'


@pytest.mark.parametrize("build", [lambda text: table([text], [[text]]), copyable])
def test_tables_and_code_are_escaped(build: object) -> None:
    assert callable(build)
    assert "<script" not in build(INJECTION)


def test_no_text_ends_the_data_of_scripts() -> None:
    """The data are the same after the browser has parsed them."""
    value = {"name": INJECTION, "comment": "<!--", "line": "\u2028", "&": [1, None]}
    element = json_script("data", value)
    assert isinstance(element, Markup)
    found = re.fullmatch(r'<script type="application/json" id="data">(.*)</script>', element)
    assert found is not None
    assert not set("<>&\u2028") & set(found[1])
    assert json.loads(found[1]) == value


def test_numbers_that_json_lacks_become_null() -> None:
    element = json_script("data", {"values": [1.5, float("nan"), (float("inf"),)]})
    assert '{"values":[1.5,null,[null]]}' in element
