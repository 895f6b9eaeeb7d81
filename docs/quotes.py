"""Update the code that pages quote: `python docs/quotes.py`.

A block whose title is a file and a name, such as "fedssl/algorithms/fedu.py: FedU.client_update",
is replaced by the current definition. A block with line numbers, such as
"fedssl/engine/federate.py:60-61", is not changed.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
QUOTE = re.compile(r'^```python title="([^":]+): ([\w.]+)"\n.*?^```$', re.MULTILINE | re.DOTALL)


def quoted(path: str, name: str) -> str:
    """Return the source of a definition in a file, including decorators."""
    text = (DOCS.parent / path).read_text("utf-8")
    node: Any = ast.parse(text)
    for word in name.split("."):
        named = [child for child in node.body if getattr(child, "name", None) == word]
        if not named:
            raise SystemExit(f"{path} has no {name}")
        node = named[0]
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return "".join(text.splitlines(keepends=True)[first - 1 : node.end_lineno])


def refreshed(page: str) -> str:
    """Return a page with current quotes."""
    return QUOTE.sub(
        lambda found: f'```python title="{found[1]}: {found[2]}"\n{quoted(found[1], found[2])}```',
        page,
    )


if __name__ == "__main__":
    for path in sorted(DOCS.rglob("*.md")):
        path.write_text(refreshed(path.read_text("utf-8")), "utf-8")
