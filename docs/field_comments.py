"""Read the comments on the fields of classes, which the reference pages show as their meaning."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from typing import Any

import griffe

DIRECTIVE = re.compile(r"^#\s*(type: ignore\S*|noqa.*)\s*")


def field_comments(source: str) -> dict[str, str]:
    """Return the comment on each annotated field of a class, by name, given the class's source.

    A comment is in the statement of its field, or on the lines above it.
    """
    comment_at: dict[int, str] = {}
    own_line: set[int] = set()  # lines that hold nothing but a comment
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        words = DIRECTIVE.sub("", token.string).removeprefix("#").strip()
        if words:
            comment_at[token.start[0]] = words
            if token.line.strip().startswith("#"):
                own_line.add(token.start[0])
    fields = {}
    for statement in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        lines = list(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
        above = statement.lineno - 1
        while above in own_line:
            lines.insert(0, above)
            above -= 1
        words = " ".join(comment_at[line] for line in lines if line in comment_at)
        if words:
            fields[statement.target.id] = words.removesuffix(".")
    return fields


class FieldComments(griffe.Extension):
    """Let mkdocstrings show the comment on a field that has no docstring."""

    def on_class_members(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        """Add docstrings to the fields of a class."""
        for name, comment in field_comments(cls.source).items():
            field = cls.members[name]
            if field.docstring is None:
                text = comment
                if comment.partition(" ")[0].isalpha():
                    text = comment[:1].upper() + comment[1:]
                field.docstring = griffe.Docstring(f"{text}.", parent=field)
