"""Replace characters that standard output or standard error cannot encode."""

from __future__ import annotations

import codecs
import io
import sys

# What is printed in place of characters that a stream cannot encode.
_ASCII = {"…": "...", "±": "+-", "×": "x", "·": ".", "→": "->", "≤": "<=", "≥": ">="}
_ASCII |= {"α": "alpha", "β": "beta", "λ": "lambda", "μ": "mu", "ρ": "rho", "τ": "tau", "⁶": "^6"}
_ASCII |= dict.fromkeys("–—−─━╌┄┈╴╶╸╺═", "-")
_ASCII |= dict.fromkeys("│┃║╎┆┊╵╷╹╻", "|")
_BOX_DRAWING = range(0x2500, 0x2580)
_KEEP_ENCODABLE = "fedssl-ascii"  # the name of the error handler


def to_ascii(text: str) -> str:
    """Return text without characters beyond ASCII: they become similar ones, or escapes."""
    characters = []
    for character in text:
        if character in _ASCII:
            character = _ASCII[character]
        elif ord(character) in _BOX_DRAWING:
            character = "+"
        characters.append(character)
    return "".join(characters).encode("ascii", "backslashreplace").decode("ascii")


def _replace_unencodable(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return to_ascii(error.object[error.start : error.end]), error.end


codecs.register_error(_KEEP_ENCODABLE, _replace_unencodable)


def encodable(text: str, encoding: str) -> str:
    """Return the text with characters that the encoding has."""
    return text.encode(encoding, _KEEP_ENCODABLE).decode(encoding)


def replace_unencodable_output() -> None:
    """Make the standard streams replace characters that they cannot encode, as `to_ascii` does."""
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper):
            continue
        if stream.errors in ("strict", "surrogateescape", "backslashreplace"):
            stream.reconfigure(errors=_KEEP_ENCODABLE)
