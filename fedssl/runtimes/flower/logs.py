"""Logs of Flower's processes, followed while they are written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from fedssl.data.progress import Say
from fedssl.guard import plain

JOINING = re.compile(r"rejected (site|node) |left out |\d+ of \d+ clients |going on without")  # of a server
COMPLAINT = re.compile(r"notice from the server: .*|Connection attempt failed|\bERROR\b.*")  # of a node


def joining(log: Path, say: Say) -> Callable[[], None]:
    """Return a function that passes on what the server has logged about joining since the last call."""
    lines = following(log)

    def hear() -> None:
        for line in lines():
            text = line.decode("utf-8", "replace").strip()
            found = JOINING.search(text)
            if found:
                say(f"the server says: {text[found.start() :]}")

    return hear


def complaints(log: Path, name: str, say: Say) -> Callable[[], None]:
    """Return a function that passes on new complaints in the log of a node, each text once."""
    lines = following(log)
    told: set[str] = set()

    def hear() -> None:
        for line in lines():
            found = COMPLAINT.search(line.decode("utf-8", "replace"))
            if found and found[0] not in told:
                told.add(found[0])
                say(f"{name} says: {plain(found[0])}; its log: {log}")

    return hear


def following(log: Path) -> Callable[[], Iterator[bytes]]:
    """Each call gives the whole lines written since the last. A server that goes on takes rounds after its checkpoint
    off their log: where no line ends any more at the place read up to, all of it is read again."""
    read = 0

    def more() -> Iterator[bytes]:
        nonlocal read
        if not log.exists():
            return
        with log.open("rb") as file:
            file.seek(max(0, read - 1))
            if read and file.read(1) != b"\n":
                read = file.seek(0)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                read += len(line)
                yield line

    return more
