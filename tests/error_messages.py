"""Expect errors by their class and compare their texts with one golden file, error_messages.json.

A test that uses `raises` fails if the class or the text of the error changes. `make messages`
records the present texts; the difference in the golden file then shows every changed message for
review.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedssl.core.errors import FedsslError

GOLDEN = Path(__file__).with_suffix(".json")
ROOT = Path(__file__).parent.parent
# Parts of a message that differ between machines.
VOLATILE = [
    (re.compile(r"/\S*?pytest-of-[^/\s]+/pytest-\d+/(popen-gw\d+/)?[^/\s\"';:,)]+"), "<tmp>"),
    (re.compile(rf"{re.escape(str(ROOT))}(?![\w-])"), "<repository>"),
    (re.compile(r"(?<=process )\d+"), "<pid>"),
    (re.compile(r"(?<=/\.)[0-9a-f]{8}(?=\.\S+\.tmp)"), "<random>"),
    (re.compile(r"\b[0-9a-f]{16}\b"), "<hash>"),
    (re.compile(r"\b\d{4}-\d\d-\d\dT[\d:]+\+00:00"), "<time>"),
    (re.compile(r"(?<=127\.0\.0\.1:)\d+"), "<port>"),
    # Norms of updates: their last digits depend on the kind of CPU.
    (re.compile(r"(?<=norm of its update is )[\d.e+]*\d"), "<norm>"),
    (re.compile(r"(?<=above the limit of )[\d.e+]*\d(?=[ :])"), "<limit>"),
    (re.compile(r"(?<=torch )\d+\.\d+\.\d+\S*"), "<version>"),
]

_recorded: dict[str, list[str]] = defaultdict(list)


@contextmanager
def raises(kind: type[FedsslError]) -> Iterator[pytest.ExceptionInfo[FedsslError]]:
    """Expect an error of this class with the text in the golden file."""
    with pytest.raises(kind) as raised:
        yield raised
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0]
    message = _comparable(str(raised.value))
    position = len(_recorded[test])
    _recorded[test].append(message)
    if _recording():
        return
    expected = _golden().get(test, [])[position : position + 1]
    assert [message] == expected, "if the new text is better, `make messages` records it"


def _comparable(message: str) -> str:
    """Return a message without the parts that differ between machines."""
    for pattern, name in VOLATILE:
        message = pattern.sub(name, message)
    return message


def _recording() -> bool:
    return os.environ.get("RECORD_MESSAGES") == "1"


def _golden() -> dict[str, list[str]]:
    if not GOLDEN.is_file():
        return {}
    return json.loads(GOLDEN.read_text("utf-8"))


def write_golden() -> None:
    """Write the recorded messages to the golden file; keep those of tests that did not run."""
    if not _recording():
        return
    messages = {**_golden(), **_recorded}
    present = {test: messages[test] for test in sorted(messages) if _exists(test)}
    GOLDEN.write_text(json.dumps(present, indent=1, ensure_ascii=False) + "\n", "utf-8")


def _exists(test: str) -> bool:
    """True if the test file still defines this test."""
    file, _, name = test.partition("::")
    path = ROOT / file
    return path.is_file() and f"def {name.partition('[')[0]}(" in path.read_text("utf-8")
