"""Open the live page in a browser without its token in a command line, which others can read."""

from __future__ import annotations

import atexit
import html
import shutil
import tempfile
import webbrowser
from pathlib import Path

from fedssl.core.console import print_to_stderr


def open_in_browser(url: str) -> None:
    """Open a private file that leads to the URL; print a message if there is no browser."""
    folder = Path(tempfile.mkdtemp(prefix="fedssl-watch-"))  # with mode 0700
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    page = folder / "open.html"
    target = html.escape(url)
    page.write_text(
        f'<!doctype html><meta http-equiv="refresh" content="0; url={target}">'
        f'<a href="{target}">Open the page</a>\n',
        "utf-8",
    )
    try:
        opened = webbrowser.open(page.as_uri())
    except webbrowser.Error:
        opened = False
    if not opened:
        print_to_stderr("no browser was found: open the URL yourself")
