"""Follow the logs of Flower's processes while they are written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from fedssl.core.console import Notify
from fedssl.engine.uploads.records import sanitize

JOINING = re.compile(  # in the log of a server
    r"rejected node |left out |\d+ of \d+ clients |resuming without"
)
COMPLAINT = re.compile(  # in the log of a node
    r"notice from the server: .*|Connection attempt failed|\bERROR\b.*"
)


def follow_joining(log: Path, notify: Notify) -> Callable[[], None]:
    """Return a function that prints the lines about joining that a server has logged since."""
    new_lines = follow_lines(log)

    def print_new() -> None:
        for line in new_lines():
            text = line.decode("utf-8", "replace").strip()
            match = JOINING.search(text)
            if match:
                notify(f"server: {text[match.start() :]}")

    return print_new


def follow_complaints(log: Path, name: str, notify: Notify) -> Callable[[], None]:
    """Return a function that prints new complaints in the log of a node, each text once."""
    new_lines = follow_lines(log)
    printed: set[str] = set()

    def print_new() -> None:
        for line in new_lines():
            match = COMPLAINT.search(line.decode("utf-8", "replace"))
            if match and match[0] not in printed:
                printed.add(match[0])
                notify(f"{name}: {sanitize(match[0])}; its log: {log}")

    return print_new


def follow_lines(log: Path) -> Callable[[], Iterator[bytes]]:
    """Return a function that yields the whole lines written since its last call.

    A server that resumes removes the rounds after its checkpoint from their log. If no line ends
    any more at the position read up to, the log is read again from the start.
    """
    position = 0

    def new_lines() -> Iterator[bytes]:
        nonlocal position
        if not log.exists():
            return
        with log.open("rb") as file:
            file.seek(max(0, position - 1))
            if position and file.read(1) != b"\n":
                position = file.seek(0)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                position += len(line)
                yield line

    return new_lines
