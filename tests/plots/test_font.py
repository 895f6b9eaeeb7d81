"""Names of clients and files are legible in pictures, whatever their alphabet."""

from __future__ import annotations

import pytest

from fedssl.plots.font import text_font


@pytest.mark.parametrize("letter", list("éłßΩЖş"))
def test_letters_with_accents_are_not_boxes(letter: str) -> None:
    font = text_font(14)
    missing = bytes(font.getmask("\uffff"))
    assert bytes(font.getmask(letter)) != missing
