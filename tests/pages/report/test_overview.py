"""The first section of a report."""

from __future__ import annotations

from fedssl.pages.report.overview import MAX_LISTED, notice


def test_a_single_other_line_is_not_hidden() -> None:
    lines = [f"line {number}" for number in range(MAX_LISTED + 2)]
    assert "<details" not in notice("Notes", lines[:-1], "muted")
    assert "2 more" in notice("Notes", lines, "muted")
