"""Output in encodings that lack some characters."""

import io
import sys

import pytest
from rich.table import Table

from fedssl.core import ascii_output, console
from fedssl.core.rich_console import Console


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("79.4 ± 0.9", "79.4 +- 0.9"),
        ("simclr × fedavg", "simclr x fedavg"),
        ("a, b, …", "a, b, ..."),
        ("╭─┬─╮", "+-+-+"),
        ("│━╸│", "|--|"),
        ("−0.1 – 2", "-0.1 - 2"),
        ("λ = 10⁶", "lambda = 10^6"),
        ("日", "\\u65e5"),
    ],
)
def test_text_in_ascii(text, expected):
    assert ascii_output.to_ascii(text) == expected
    assert ascii_output.encodable(text, "ascii") == expected
    assert ascii_output.encodable(text, "utf-8") == text


def test_an_encoding_keeps_the_characters_that_it_has():
    assert ascii_output.encodable("± … λ 日", "latin-1") == "± ... lambda \\u65e5"


def test_messages_in_ascii(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stderr", stream)
    console.print_to_stderr("3 × 4 …")
    assert stream.buffer.getvalue() == b"3 x 4 ...\n"


def test_streams_replace_characters_that_they_cannot_encode(monkeypatch):
    for errors in ("strict", "surrogateescape", "backslashreplace"):
        stream = io.TextIOWrapper(io.BytesIO(), "ascii", errors)
        monkeypatch.setattr(sys, "stdout", stream)
        ascii_output.replace_unencodable_output()
        print("3 × 4 ┃ λ 日", flush=True)
        assert stream.buffer.getvalue() == b"3 x 4 | lambda \\u65e5\n"


def test_a_table_in_ascii_keeps_its_columns():
    """The borders of all rows end in the same column, although "+-" is wider than "±"."""
    stream = io.TextIOWrapper(io.BytesIO(), "ascii")
    table = Table()
    for column in ("a", "b"):
        table.add_column(column)
    table.add_row("1.0 ± 2.0", "x")
    table.add_row("1.0", "y")
    Console(file=stream, width=60).print(table)
    stream.flush()
    rows = stream.buffer.getvalue().decode("ascii").splitlines()
    assert len({len(row) for row in rows}) == 1
    assert "| 1.0 +- 2.0 | x |" in rows
