"""The digest of the code: which changes affect it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import fedssl
from fedssl.core.provenance import PRESENTATION, package_digest, statements

PACKAGE = Path(fedssl.__file__).parent


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a small package."""
    (tmp_path / "probes").mkdir()
    (tmp_path / "cli").mkdir()
    (tmp_path / "runs").mkdir()
    (tmp_path / "analysis").mkdir()
    (tmp_path / "probes/knn.py").write_text(
        '"""Neighbours."""\n\ndef k():\n    """How many."""\n    return 200  # k\n'
    )
    (tmp_path / "cli/results.py").write_text("WIDTH = 80\n")
    (tmp_path / "runs/rounds_log.py").write_text("SCALE = 1\n")
    (tmp_path / "cli/main.py").write_text("x = 1\n")
    return tmp_path


@pytest.mark.parametrize(
    ("file", "text", "changes"),
    [
        (
            "probes/knn.py",
            '"""Others."""\ndef k():\n    """Longer,\n\n    and otherwise."""\n\n    return 200',
            False,
        ),
        (
            "probes/knn.py",
            '"""Neighbours."""\n\ndef k():\n    """How many."""\n    return 100  # k\n',
            True,
        ),
        (
            "probes/knn.py",
            'def k():\n    "How many."\n    "Not a docstring."\n    return 200\n',
            True,
        ),
        ("probes/more.py", "", True),
        ("cli/results.py", "WIDTH = 100\n", False),
        (
            "runs/rounds_log.py",
            "SCALE = 2\n",
            True,
        ),  # writes the log from which tables read divergences
        ("analysis/new.py", "x = 1\n", False),
        ("cli/main.py", "x = 2\n", False),
        ("probes/cli.py", "x = 2\n", True),  # only the folder cli/ is left out
    ],
)
def test_which_changes_affect_the_digest(
    package: Path, file: str, text: str, changes: bool
) -> None:
    before = package_digest(package)
    (package / file).write_text(text)
    assert (package_digest(package) != before) == changes


def test_a_string_that_is_a_value_counts() -> None:
    assert statements('x = "a"') != statements('x = "b"')
    assert statements('class A:\n    "a"') == statements('class A:\n    "b"')
    assert statements("async def f():\n    'a'\n    pass") == statements("async def f():\n    pass")


def test_the_package_itself(tmp_path: Path) -> None:
    """The digest is that of the code that runs; a number in a probe changes it. All names in
    PRESENTATION exist.
    """
    copy = shutil.copytree(
        PACKAGE, tmp_path / "fedssl", ignore=shutil.ignore_patterns("__pycache__")
    )
    assert package_digest(copy) == package_digest(PACKAGE)
    protocol = copy / "probes/protocol.py"
    protocol.write_text(protocol.read_text().replace("3e-3", "3e-4", 1))
    assert package_digest(copy) != package_digest(PACKAGE)
    assert all(
        (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file() for name in PRESENTATION
    )
