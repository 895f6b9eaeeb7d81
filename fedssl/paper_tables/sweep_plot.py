"""Plot a sweep over one numeric setting next to its table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedssl.core.console import print_to_stderr
from fedssl.core.errors import ConfigError
from fedssl.core.files.atomic import write_atomic
from fedssl.experiment.plain_values import parse_assignments
from fedssl.paper_tables.cell_result import CellResult
from fedssl.paper_tables.table_results import Outcome
from fedssl.plots.comparison import Accuracy, Setting, draw_sweep_alone
from fedssl.plots.style import encode_png, need_matplotlib

BARS = "± standard deviation over seeds"


def write_sweep_plot(outcome: Outcome) -> None:
    """Write the plot of a sweep, if it varies one numeric setting and two values are measured."""
    results = outcome.results
    key = swept_setting(results)
    if key is None:
        return
    settings = measured_settings(results, key)
    if len(settings) < 2:
        return
    try:
        need_matplotlib()
    except ConfigError as problem:  # a missing extra must not hide the table
        print_to_stderr(f"no plot: {problem}")
        return
    write_atomic(outcome.plot_file, encode_png(draw_sweep_alone(settings, key, BARS)))


def swept_setting(results: Sequence[CellResult]) -> str | None:
    """Return the key of the one setting that differs between rows, if its values are numbers."""
    values: dict[str, list[Any]] = {}
    for result in results:
        for key, value in parse_assignments(result.cell.set).items():
            values.setdefault(key, []).append(value)
    varying = []
    for key, of_rows in values.items():
        if of_rows.count(of_rows[0]) < len(of_rows):
            varying.append(key)
    if len(varying) != 1 or not all(map(_is_number, values[varying[0]])):
        return None
    return varying[0]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def measured_settings(results: Sequence[CellResult], key: str) -> list[Setting]:
    """Return the rows of which every probe has a figure."""
    rows: dict[str, list[CellResult]] = {}
    for result in results:
        rows.setdefault(result.cell.row, []).append(result)
    settings = []
    for name, row in rows.items():
        finals = {}
        for result in row:
            if result.mean is not None:
                finals[result.cell.column] = _accuracy(result.mean, result)
        if len(finals) == len(row):
            value = parse_assignments(row[0].cell.set)[key]
            settings.append(Setting(name, finals, value=value))
    return settings


def _accuracy(mean: float, result: CellResult) -> Accuracy:
    if result.std is None:
        return Accuracy(mean, result.values)
    return Accuracy(mean, result.values, (mean - result.std, mean + result.std))
