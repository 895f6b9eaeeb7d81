"""Build HTML in which every text is escaped: names of clients and of classes come from users."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

VOID = {"br", "col", "hr", "img", "input", "link", "meta"}


class Markup(str):
    """HTML that was built by this module, and is not escaped again."""

    __slots__ = ()


Content = str | Markup | None


def tag(name: str, /, *children: Content, **attributes: str | int | float | bool | None) -> Markup:
    """Return an element; text among its children is escaped.

    A trailing underscore of an attribute's name is removed (`class_`), other underscores are
    dashes. True is an attribute without a value; False and None leave it out.
    """
    words = [name]
    for key, value in attributes.items():
        attribute = key.removesuffix("_").replace("_", "-")
        if value is True:
            words.append(attribute)
        elif value is not None and value is not False:
            words.append(f'{attribute}="{html.escape(str(value))}"')
    opening = f"<{' '.join(words)}>"
    if name in VOID:
        return Markup(opening)
    return Markup(f"{opening}{join(*children)}</{name}>")


def join(*children: Content) -> Markup:
    """Return the children one after the other; text is escaped."""
    parts = []
    for child in children:
        if isinstance(child, Markup):
            parts.append(str(child))
        elif child is not None:
            parts.append(html.escape(child))
    return Markup("".join(parts))


def section(anchor: str, title: str, *children: Content) -> Markup:
    """Return a section with a heading, to which a link `#anchor` leads."""
    heading = tag("h2", title, id=f"{anchor}-title")
    return tag("section", heading, *children, id=anchor, aria_labelledby=f"{anchor}-title")


def paragraph(text: Content, style: str | None = None) -> Markup:
    """Return a paragraph; `style` is a class."""
    return tag("p", text, class_=style)


def bullets(lines: Sequence[Content]) -> Markup:
    """Return a list with one item per line."""
    return tag("ul", *[tag("li", line) for line in lines])


def table(
    headings: Sequence[Content], rows: Sequence[Sequence[Content]], numbers: Sequence[int] = ()
) -> Markup:
    """Return a table in a region that scrolls if it is wide; `numbers` are columns of numbers."""
    head = tag("tr", *_cells("th", headings, numbers))
    body = []
    for row in rows:
        body.append(tag("tr", *_cells("td", row, numbers)))
    return scrolling(tag("table", tag("thead", head), tag("tbody", *body)))


def scrolling(content: Markup) -> Markup:
    """Return wide content in a region that scrolls, also by keyboard."""
    return tag("div", content, class_="scroll", tabindex=0, role="region", aria_label="table")


def _cells(name: str, cells: Sequence[Content], numbers: Sequence[int]) -> list[Markup]:
    found = []
    for column, cell in enumerate(cells):
        style = None
        if column in numbers:
            style = "number"
        scope = None
        if name == "th":
            scope = "col"
        found.append(tag(name, cell, class_=style, scope=scope))
    return found


def details(summary: str, *children: Content) -> Markup:
    """Return content that is shown on demand."""
    return tag("details", tag("summary", summary), *children)


def copyable(text: str, label: str = "Copy") -> Markup:
    """Return preformatted text with a button that copies it."""
    button = tag("button", label, type="button", class_="copy", data_copy=True)
    return tag("div", tag("pre", tag("code", text), tabindex=0), button, class_="copyable")


def json_script(identifier: str, value: Mapping[str, Any]) -> Markup:
    """Return data for scripts; no text in it can end the element.

    Numbers that are not finite become null: JSON has none.
    """
    text = json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(f'<script type="application/json" id="{identifier}">{text}</script>')


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_finite, value))
    return value
