"""Explain why a TOML document cannot be parsed: the line, the place in it, and what to write.

Imports no settings class.
"""

from __future__ import annotations

import re
import tomllib
from typing import NamedTuple

MAX_SHOWN = 90  # characters of a line
MAX_LINES = 2000  # of a document in which the beginning of an unclosed value is searched
SWITCHES = {"yes": "true", "no": "false", "on": "true", "off": "false"}
NO_VALUE = ("none", "null", "nil")
CURLY_QUOTES = "“”„‘’‚«»"

# By the beginning of the parser's message.
REASONS = {
    "Cannot overwrite a value": "this key was set before: remove one of the lines",
    "Cannot declare": "this table was begun before: move its keys there",
    "Expected '=' after a key": "a setting is written as key = value",
    "Expected ']'": "the name of a table needs a closing bracket: [name]",
    "Expected newline or end of document": (
        "something follows the value: put text in quotes, and each setting on its own line"
    ),
    "Invalid statement": "a line is a setting, key = value, a [table] or a # comment",
    "Unclosed array": "a list needs commas between its values and a closing bracket ]",
    "Unclosed inline table": "a table in one line needs a closing brace }",
    "Unterminated string": 'text that begins with """ needs """ at its end',
}


class Place(NamedTuple):
    """The place at which a document cannot be parsed."""

    line: int  # from 1
    text: str  # of the line
    column: int  # from 0; the length of the text is its end

    @property
    def rest(self) -> str:
        """The text from this place on."""
        return self.text[self.column :]


def explain_toml_error(text: str, where: str, problem: ValueError) -> str:
    """Return a message of three lines: the reason, the line of the document, and a caret.

    One line if the parser has not given a place in a line.
    """
    message = str(problem)
    place = _find_place(text, message)
    if place is None:
        return f"{where} is not valid TOML: {message}"
    reason = _explain_text(place) or _explain_value(place, message)
    if reason is None:
        reason = _explain_statement(message)
    line, caret = _show(place)
    return f"{where} is not valid TOML, line {place.line}: {reason}\n  {line}\n  {caret}"


def _find_place(text: str, message: str) -> Place | None:
    """Return the place that a message of the parser names, or where the last value begins."""
    lines = text.replace("\r\n", "\n").split("\n")
    position = re.search(r"\(at line (\d+), column (\d+)\)$", message)
    if position is not None:
        number, column = map(int, position.groups())
        if number > len(lines):
            return None
        line = lines[number - 1]
        return Place(number, line, min(column - 1, len(line)))
    if not message.endswith("(at end of document)") or len(lines) > MAX_LINES:
        return None
    number = _unfinished_line(lines)
    return Place(number, lines[number - 1], len(lines[number - 1]))


def _unfinished_line(lines: list[str]) -> int:
    """Return the number of the line with which the last statement begins, which has no end."""
    for count in range(len(lines) - 1, 0, -1):
        try:
            tomllib.loads("\n".join(lines[:count]))
        except ValueError:
            continue
        return count + 1
    return 1


def _explain_text(place: Place) -> str | None:
    """Return the reason if the place is in text that begins with one quote, else None."""
    opened = _open_quote(place.text[: place.column])
    if opened is None or place.text[: opened + 1].endswith(('"""', "'''")):
        return None
    quote = place.text[opened]
    content = place.text[opened + 1 :]
    if quote == '"' and "\\" in content and _is_path(place, content):
        return _backslash_hint(content)
    if place.rest:
        return None  # a character that text must not contain
    content = re.sub(r"\s+#.*$", "", content).rstrip()
    return _write("the closing quote is missing", f"{quote}{content}{quote}")


def _is_path(place: Place, content: str) -> bool:
    """True if backslashes are meant as such: they are no escapes, or separate folders."""
    if place.rest or content.rstrip().endswith('\\"'):
        return True
    return re.match(r"[A-Za-z]:\\|\\\\", content) is not None


def _write(reason: str, value: str) -> str:
    """Return a reason with the value to write, unless that is long."""
    return f"{reason}: write {value}" if len(value) <= MAX_SHOWN else reason


def _open_quote(text: str) -> int | None:
    """Return where the text in quotes begins that has no end in a part of a line."""
    opened: int | None = None
    position = 0
    while position < len(text):
        character = text[position]
        if opened is None and character == "#":
            return None
        if opened is None and character in "\"'":
            opened = position
        elif opened is not None and character == text[opened]:
            opened = None
        elif character == "\\" and opened is not None and text[opened] == '"':
            position += 1
        position += 1
    return opened


def _backslash_hint(content: str) -> str:
    """Return the reason for text in double quotes whose backslashes are meant as such."""
    path = content[: content.rindex('"')] if '"' in content else content.rstrip()
    fixed = path.replace("\\\\", "\\")
    reason = "in double quotes, a backslash begins an escape sequence: write"
    if "'" in fixed or len(fixed) > MAX_SHOWN:
        return f"{reason} / instead of each backslash"
    return f"{reason} '{fixed}' in single quotes, or / instead of each backslash"


def _explain_value(place: Place, message: str) -> str | None:
    """Return the reason if the place begins a value that is no value of TOML, else None."""
    if not message.startswith("Invalid value"):
        return None
    end = r"\s+#|$"
    if not place.text[: place.column].rstrip().endswith("="):  # in a list
        end += r"|[,\]}]"
    value = re.split(end, place.rest, maxsplit=1)[0].strip()
    if not value or value.startswith("#"):
        return "the value is missing"
    if value.startswith("="):
        return "a setting has one equals sign: key = value"
    word = value.lower()
    if word in ("true", "false"):
        return f"true and false are written in lower case: write {word}"
    if word in SWITCHES:
        return f"a switch is true or false: write {SWITCHES[word]}"
    if re.fullmatch(r"[+-]?\.\d+", value):
        return f"a number has a digit before its point: write {value.replace('.', '0.')}"
    if word in NO_VALUE:
        return "TOML has no such value: remove the line to use the default"
    return _quotes_hint(value)


def _quotes_hint(value: str) -> str:
    """Return the reason for text without quotes, or with quotes that TOML does not have."""
    bare = value.strip(CURLY_QUOTES + "\"'")
    quote = "'" if "\\" in bare else '"'
    kind = "straight quotes" if value[0] in CURLY_QUOTES else "quotes"
    return _write(f"text must be in {kind}", f"{quote}{bare}{quote}")


def _explain_statement(message: str) -> str:
    """Return the reason for any other message of the parser."""
    for beginning, reason in REASONS.items():
        if message.startswith(beginning):
            return reason
    sentence = re.sub(r" \(at [^()]*\)$", "", message)
    return sentence[:1].lower() + sentence[1:]


def _show(place: Place) -> tuple[str, str]:
    """Return the line, shortened around the place if it is long, and a caret under the place."""
    line = "".join(character if character.isprintable() else " " for character in place.text)
    start = max(0, place.column - MAX_SHOWN // 2) if len(line) > MAX_SHOWN else 0
    shown = line[start : start + MAX_SHOWN]
    indent = len(shown) - len(shown.lstrip())
    if place.column - start < indent:
        indent = 0
    return shown[indent:].rstrip(), " " * (place.column - start - indent) + "^"
