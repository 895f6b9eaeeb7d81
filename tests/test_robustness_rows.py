"""Every row has a test, and the page that lists them is what the script writes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "scripts/robustness_rows.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("robustness_rows", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["robustness_rows"] = module
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_script_writes(script: ModuleType) -> None:
    rows = script.read_rows()
    tests = script.find_tests()
    assert script.problems(rows, tests) == []
    page = (ROOT / "docs/maintainers/robustness.md").read_text("utf-8")
    assert page == script.page(rows, tests), "python scripts/robustness_rows.py writes it"


def test_rows_are_numbered_without_gaps(script: ModuleType) -> None:
    """11 rows of images, 14 of uploads, 13 of the process and 11 of the rest."""
    rows = script.read_rows()
    expected = []
    for letter, count in (("D", 11), ("U", 14), ("P", 13), ("C", 11)):
        expected += [f"{letter}{number}" for number in range(1, count + 1)]
    assert list(rows) == expected


MODULE = """
import pytest
pytestmark = [pytest.mark.slow, pytest.mark.rows("A1", "A2")]

@pytest.mark.parametrize("x", [1])
@pytest.mark.rows("A3")
def test_one(x): ...

def test_two(): ...
"""


def test_marks_of_modules_and_tests_are_found(tmp_path: Path, script: ModuleType) -> None:
    (tmp_path / "test_a.py").write_text(MODULE)
    found = script.find_tests(tmp_path)
    assert found == {
        "A1": [("test_a.py", None)],
        "A2": [("test_a.py", None)],
        "A3": [("test_a.py", "test_one")],
    }
    rows = {"A1": {}, "A3": {}, "B1": {}, "B2": {"open": "later"}}
    assert script.problems(rows, found) == [
        "row B1 has no test",
        "test_a.py::None names the unknown row A2",
    ]


def test_tests_of_a_row_can_be_selected() -> None:
    command = [sys.executable, "-m", "pytest", "--rows", "D4,D5", "--collect-only"]
    done = subprocess.run(
        [*command, "tests/data/test_decode.py"], cwd=ROOT, capture_output=True, text=True
    )
    names = {line.partition("::")[2].partition("[")[0] for line in done.stdout.splitlines()}
    assert {name for name in names if name} == {
        "test_exif_orientation_is_applied",
        "test_bombs_are_refused_from_the_header",
        "test_just_below_the_limit_is_not_a_bomb",
    }
