"""Suggest a known word for a misspelled one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggest(word: str, known: Iterable[str]) -> str:
    """Return `, did you mean "x"?` if a known word is close to this one, else an empty string."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.7)
    return f', did you mean "{close[0]}"?' if close else ""
