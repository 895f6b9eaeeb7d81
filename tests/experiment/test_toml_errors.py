"""Errors in TOML name the line, show it with a caret, and state what to write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedssl.core.errors import ConfigError
from fedssl.experiment.plain_values import parse_toml

ESCAPE = "in double quotes, a backslash begins an escape sequence: write"
COMMON = [
    ('path = "photos', 'the closing quote is missing: write "photos"', 14),
    ('path = "photos  # mine', 'the closing quote is missing: write "photos"', 22),
    ("path = 'photos", "the closing quote is missing: write 'photos'", 14),
    ('note = "a\\nb', 'the closing quote is missing: write "a\\nb"', 12),
    ("path = photos", 'text must be in quotes: write "photos"', 7),
    ("path = my photos/a  # mine", 'text must be in quotes: write "my photos/a"', 7),
    ("path = /data/photos", 'text must be in quotes: write "/data/photos"', 7),
    ('path = photos"', 'text must be in quotes: write "photos"', 7),
    ("path = “photos”", 'text must be in straight quotes: write "photos"', 7),
    ("path = C:\\photos", "text must be in quotes: write 'C:\\photos'", 7),
    ("names = [random, other]", 'text must be in quotes: write "random"', 9),
    ("picture = True", "true and false are written in lower case: write true", 10),
    ("picture = FALSE  # no", "true and false are written in lower case: write false", 10),
    ("flags = [true, False]", "true and false are written in lower case: write false", 15),
    ("picture = yes", "a switch is true or false: write true", 10),
    (
        'path = "C:\\Users\\me"',
        f"{ESCAPE} 'C:\\Users\\me' in single quotes, or / instead of each backslash",
        12,
    ),
    (
        'path = "C:\\photos\\new"',
        f"{ESCAPE} 'C:\\photos\\new' in single quotes, or / instead of each backslash",
        12,
    ),
    (  # all escapes are valid, and the last one hides the closing quote
        'path = "D:\\new\\"',
        f"{ESCAPE} 'D:\\new\\' in single quotes, or / instead of each backslash",
        16,
    ),
    ('path = "D:\\it\'s"', f"{ESCAPE} / instead of each backslash", 12),
]
OTHERS = [
    ("lr = .5", "a number has a digit before its point: write 0.5", 5),
    ("k = None", "TOML has no such value: remove the line to use the default", 4),
    ("k = ", "the value is missing", 4),
    ("k = = 3", "a setting has one equals sign: key = value", 4),
    ("k == 3", "a setting has one equals sign: key = value", 3),
    ("k: 3", "a setting is written as key = value", 1),
    ("= 3", "a line is a setting, key = value, a [table] or a # comment", 0),
    ("a = 3 4", "something follows the value: put text in quotes, and each setting on its", 6),
    ("[data", "the name of a table needs a closing bracket: [name]", 5),
    ("first = 2", "this key was set before: remove one of the lines", 9),
    ("[first]", "this key was set before: remove one of the lines", 6),
    ('a = "x\x01"', "illegal character", 6),
]


def explained(text: str) -> list[str]:
    """Return the lines of the error for a TOML document."""
    with pytest.raises(ConfigError) as error:
        parse_toml(text, "mine.toml")
    return str(error.value).split("\n")


@pytest.mark.parametrize(("line", "reason", "column"), COMMON + OTHERS)
@pytest.mark.parametrize("after", ["", "\n", "\r\n", "\nlast = 3\n"])
def test_the_line_is_shown_with_a_caret(line: str, reason: str, column: int, after: str) -> None:
    first, shown, caret = explained(f"first = 1\n{line}{after}")
    assert first.startswith(f"mine.toml is not valid TOML, line 2: {reason}")
    assert shown == f"  {line.rstrip()}".replace("\x01", " ")
    assert caret == " " * (2 + column) + "^"


@pytest.mark.parametrize("reason", [reason for _, reason, _ in COMMON[:-1]])
def test_the_value_to_write_is_valid(reason: str) -> None:
    value = reason.partition("write ")[2].partition(" in single")[0]
    assert parse_toml(f"key = {value}", "mine.toml").keys() == {"key"}


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ('a = 1\nb = """x\ny\n', 2, 'text that begins with """ needs """ at its end'),
        ("a = 1\n\nb = [1,\n2\n", 3, "a list needs commas between its values and a closing"),
        ("[t]\na = {b = 1\n", 2, "a table in one line needs a closing brace }"),
    ],
)
def test_a_value_without_an_end_is_reported_where_it_begins(
    text: str, line: int, reason: str
) -> None:
    assert explained(text)[0].startswith(f"mine.toml is not valid TOML, line {line}: {reason}")


def test_long_lines_are_shortened() -> None:
    first, shown, caret = explained(f"key = {'x' * 300}\n")
    assert first == "mine.toml is not valid TOML, line 1: text must be in quotes"
    assert (len(shown), caret) == (92, " " * 8 + "^")
    _, shown, caret = explained(f'key = "{"x" * 300}\n')
    assert shown == f"  {'x' * 45}"
    assert caret == " " * 47 + "^"


def test_indentation_is_removed() -> None:
    assert explained("  \tpath = photos\n")[1:] == ["  path = photos", " " * 9 + "^"]


def test_a_number_of_many_digits_has_no_place() -> None:
    (line,) = explained(f"a = {'9' * 5000}")
    assert line.startswith("mine.toml is not valid TOML: Exceeds the limit")


def test_the_command_prints_the_place(tmp_path: Path, cli: Any) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[data]\nname = "folder"\npath = photos\n')
    code, _, err = cli("run", str(path))
    assert code == 2
    assert err.splitlines() == [
        f'fedssl: {path} is not valid TOML, line 3: text must be in quotes: write "photos"',
        "  path = photos",
        "         ^",
    ]


def test_a_byte_order_mark_is_ignored(tmp_path: Path, cli: Any) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xef\xbb\xbfrounds = 0\n")
    assert "not valid TOML" not in cli("run", str(path))[2]
