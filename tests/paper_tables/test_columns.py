"""The columns of a table: probes of a sweep, and no empty columns."""

from __future__ import annotations

from pathlib import Path

from fake_results import GOOD, fake_result, make_outcome, make_sweep

from fedssl.paper_tables.columns import arrange, measured_text
from fedssl.paper_tables.markdown import markdown
from fedssl.paper_tables.published import Cell


def test_the_probes_of_a_sweep_are_columns(tmp_path: Path) -> None:
    outcome = make_sweep(tmp_path, "train.lr=0.1,0.2", probes=("knn", "linear"))
    for plan, value in zip(outcome.requested_seeds, (70.0, 71.0, 72.0), strict=False):
        fake_result(plan, value)
    columns = arrange(outcome, outcome.results, measured_text)
    assert columns.headings == ["settings", "knn (seeds)", "linear (seeds)"]
    assert columns.rows == [
        ["train.lr=0.1", "70.00 (1)", "71.00 (1)"],
        ["train.lr=0.2", "72.00 (1)", ""],
    ]
    text = markdown(outcome)
    assert "| settings | knn (seeds) | linear (seeds) |\n|---|---|---|" in text
    assert "| train.lr=0.1 | 70.00 (1) | 71.00 (1) |" in text


def test_a_paper_without_published_figures_has_no_column_for_them(tmp_path: Path) -> None:
    unpublished = Cell("A", "z", GOOD.recipe, "linear")
    both = make_outcome(tmp_path, GOOD, unpublished, seeds=1)
    headings = ["row", "column", "published", "measured (seeds)", "difference"]
    assert arrange(both, both.results, measured_text).headings == headings
    none = make_outcome(tmp_path, unpublished, seeds=1)
    columns = arrange(none, none.results, measured_text)
    assert columns.headings == ["row", "column", "measured (seeds)"]
    assert columns.rows == [["A", "z", ""]]


def test_a_scaled_table_has_no_column_of_differences(tmp_path: Path) -> None:
    outcome = make_outcome(tmp_path, GOOD, seeds=1, scale="mini")
    headings = ["row", "column", "published (not comparable)", "measured (seeds)"]
    assert arrange(outcome, outcome.results, measured_text).headings == headings
