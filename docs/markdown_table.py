"""Tables and counts in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table with a heading."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n"


def count(number: int, noun: str) -> str:
    """Return a number of things: "1 round", "1,200 rounds"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
