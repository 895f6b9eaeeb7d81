"""Suggest a known word for a misspelled one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

CUTOFF = 0.7  # similarity of two words, from 0 to 1, from which one is suggested for the other


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is closest to this one; None if none is close."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=CUTOFF)
    return next(iter(close), None)


def suggest(word: str, known: Iterable[str]) -> str:
    """Return `, did you mean "x"?` if a known word is close to this one, else an empty string."""
    close = closest(word, known)
    return "" if close is None else f', did you mean "{close}"?'
