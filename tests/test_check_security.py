"""Packages that pip-audit could not check do not count as passed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SKIPPED = {"name": "a", "skip_reason": "not found"}
GOOD: dict[str, Any] = {"name": "b", "version": "1", "vulns": []}
BAD = {"name": "c", "version": "2", "vulns": [{"id": "X-1", "fix_versions": ["3"]}]}


@pytest.fixture
def script() -> ModuleType:
    path = Path(__file__).parent.parent / "scripts/check_security.py"
    spec = importlib.util.spec_from_file_location("check_security", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("packages", "code", "out", "err"),
    [
        (None, 0, "pip-audit: not checked (its database cannot be reached)\n", ""),
        (
            [SKIPPED],
            0,
            "pip-audit: not checked (its database answers for none of 1 packages)\n",
            "",
        ),
        ([GOOD], 0, "pip-audit: no known vulnerability in 1 packages\n", ""),
        (
            [GOOD, SKIPPED],
            0,
            "pip-audit: no known vulnerability in 1 packages\n"
            "pip-audit: not checked: 1 packages that its database does not list\n",
            "",
        ),
        ([GOOD, BAD], 1, "", "pip-audit: c 2: X-1, fixed in 3\n"),
    ],
    ids=["no answer", "nothing known", "good", "partly known", "vulnerable"],
)
def test_results_of_pip_audit(
    packages: Any,
    code: int,
    out: str,
    err: str,
    script: ModuleType,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert script.report(packages) == code
    assert capsys.readouterr() == (out, err)


def test_a_missing_tool_is_no_missing_database(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "find_spec", lambda name: None)
    assert script.check_packages() == 1
    assert "pip-audit: not installed" in capsys.readouterr().err
