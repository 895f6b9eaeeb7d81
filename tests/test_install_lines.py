"""Install lines in the code and the documentation work: fedssl is installed from a clone, not from
an index.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "fedssl").rglob("*.py")),
    *sorted((ROOT / "tests").rglob("conftest.py")),
]
LINE = re.compile(r"pip install ((?:--?[\w-]+ )*)(\"[^\"]*\"|'[^']*'|[^\s\"'`]+)")


def _installed() -> list[tuple[str, str]]:
    """Return file and first requirement of every `pip install`."""
    return [
        (str(path.relative_to(ROOT)), found[2].strip("\"'"))
        for path in FILES
        for found in LINE.finditer(path.read_text("utf-8"))
    ]


def test_no_line_installs_fedssl_from_an_index() -> None:
    lines = _installed()
    assert len(lines) >= 12
    assert [line for line in lines if line[1].startswith("fedssl")] == []


def test_extras_that_are_installed_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    named = {
        (file, extra) for file, what in _installed() for extra in re.findall(r"^\.\[(.*)\]$", what)
    }
    used = {(file, one) for file, extra in named for one in extra.split(",") if "{" not in one}
    assert {extra for _, extra in used} >= {"dev", "flower", "maps", "vision", "viz"}
    assert {(file, extra) for file, extra in used if extra not in extras} == set()
