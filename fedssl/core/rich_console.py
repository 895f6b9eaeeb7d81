"""A console of rich that prints ASCII where standard output or standard error needs it."""

from __future__ import annotations

from typing import Any

from rich import console
from rich.text import Text

from fedssl.core.ascii_output import encodable

UNLIMITED = 10_000  # columns: a table has one line per row


class Console(console.Console):
    """Rich draws boxes and bars in ASCII itself; this replaces characters of text as well.

    They are replaced before a table is laid out: "+-" is wider than "±".
    """

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a string as Text in the console's encoding."""
        return super().render_str(encodable(text, self.encoding), **options)


def wide_console(width: int = UNLIMITED) -> Console:
    """Return a console with the width of the terminal, or `width` if there is no terminal.

    Lines of a wide table may be searched with other programs.
    """
    terminal = Console()
    if terminal.is_terminal:
        return terminal
    return Console(width=width)
