"""A console for tables whose lines may be searched with other programs."""

from __future__ import annotations

from fedssl.core.rich_console import Console

UNLIMITED = 10_000  # columns: a table has one line per row


def wide_console(width: int = UNLIMITED) -> Console:
    """Return a console with the width of the terminal, or `width` if there is no terminal."""
    console = Console()
    if console.is_terminal:
        return console
    return Console(width=width)
