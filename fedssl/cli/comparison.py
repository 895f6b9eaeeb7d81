"""Print and draw a comparison of finished runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fedssl.cli.label_free import compare_without_labels
from fedssl.core.console import duration, print_to_stderr
from fedssl.core.errors import ConfigError
from fedssl.core.files.atomic import write_atomic
from fedssl.core.rich_console import wide_console
from fedssl.evaluation.intervals import Interval
from fedssl.evaluation.score import rounded
from fedssl.plots.comparison import Accuracy, Setting, draw_comparison
from fedssl.plots.style import encode_png, need_matplotlib
from fedssl.runs.comparable import check_comparable
from fedssl.runs.compare import (
    THIS_RUN,
    Group,
    conclusion,
    count_test_images,
    gain_over_alone,
    group_interval,
    group_runs,
    knn_curve,
    paired_difference,
    seed_differences,
    swept_key,
)
from fedssl.runs.comparison_text import (
    BARS,
    PROBES,
    any_alone,
    explanation,
    gain_text,
    interval_text,
    mean_text,
    seed_gains_text,
)
from fedssl.runs.label_free import without_labels
from fedssl.runs.summary import RunSummary, read_runs


def compare_runs(paths: Sequence[Path], out: Path, as_json: bool) -> None:
    """Compare all runs in some directories: print a table and write a picture."""
    runs = read_runs(paths, print_to_stderr)
    if len(runs) < 2:
        raise ConfigError(
            f"a comparison needs at least two measured runs (got {len(runs)}): name another run "
            "directory, or a folder that contains several"
        )
    if without_labels(runs):
        compare_without_labels(runs, as_json)
        return
    check_comparable(runs)
    groups = group_runs(runs)
    # All runs have the same probes: check_comparable has compared their settings.
    probes = list(runs[0].results["table"][THIS_RUN])
    picture = _draw(groups, probes, out)
    if as_json:
        print(json.dumps(_as_values(groups, probes) | {"picture": picture}))
        return
    wide_console().print(_table(groups, probes))
    print(explanation(groups, probes[-1]))
    for group in groups[1:]:
        print(conclusion(groups[0], group, probes))
    if picture is not None:
        print(f"picture  {picture}")


def _table(groups: Sequence[Group], probes: Sequence[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("run")
    table.add_column("seeds", justify="right")
    for probe in probes:
        table.add_column(PROBES[probe], justify="right", no_wrap=True)
    alone = any_alone(groups, probes[-1])
    if alone:
        table.add_column(f"over clients alone, {PROBES[probes[-1]]}", justify="right")
    if len(groups) > 1:
        table.add_column(f"gain, {PROBES[probes[-1]]} (95% interval)", justify="right")
        table.add_column("gain by seed", justify="right")
    table.add_column("training time", justify="right")
    for group in groups:
        cells = [f"{len(group.runs)}"]
        for probe in probes:
            cells.append(mean_text(group, probe))
        if alone:
            cells.append(interval_text(gain_over_alone(group, probes[-1])))
        if len(groups) > 1:
            cells.append(gain_text(groups[0], group, probes[-1]))
            cells.append(seed_gains_text(groups[0], group, probes[-1]))
        table.add_row(Text(group.label), *cells, duration(group.seconds))
    return table


def _as_values(groups: Sequence[Group], probes: Sequence[str]) -> dict[str, Any]:
    """Return the comparison as plain values."""
    rows = []
    for group in groups:
        rows.append(_row_values(groups[0], group, probes))
    return {
        "test_images": count_test_images(groups[0], probes[-1]),
        "swept": swept_key(groups),
        "groups": rows,
    }


def _row_values(first: Group, group: Group, probes: Sequence[str]) -> dict[str, Any]:
    """Return a row as plain values; the first row has no gain and no conclusion."""
    row: dict[str, Any] = {
        "label": group.label,
        "settings": dict(group.values),
        "runs": list(map(_folder_name, group.runs)),
        "seeds": group.seeds,
        "seconds": group.seconds,
        "conclusion": None,
    }
    if group is not first:
        row["conclusion"] = conclusion(first, group, probes)
    for probe in probes:
        row[probe] = {
            "mean": group.mean(probe),
            "std": group.std(probe),
            "accuracies": group.accuracies(probe),
            "interval": _plain(group_interval(group, probe)),
            "gain": None,
            "gain_over_alone": _plain(gain_over_alone(group, probe)),
            "gain_by_seed": None,
        }
        if group is not first:
            row[probe]["gain"] = _plain(paired_difference(first, group, probe))
            row[probe]["gain_by_seed"] = seed_differences(first, group, probe)
    return row


def _folder_name(run: RunSummary) -> str:
    return str(run.folder)


def _plain(interval: Interval | None) -> dict[str, float] | None:
    if interval is None:
        return None
    return {key: rounded(value) for key, value in interval._asdict().items()}


def _draw(groups: Sequence[Group], probes: Sequence[str], out: Path) -> str | None:
    """Write the picture and return its path; print why and return None without matplotlib."""
    try:
        need_matplotlib()
    except ConfigError as problem:
        print_to_stderr(f"no picture: {problem}")
        return None
    key = swept_key(groups)
    settings = []
    for group in groups:
        settings.append(_setting(group, probes, key))
    write_atomic(out, encode_png(draw_comparison(settings, key, BARS)))
    return str(out)


def _setting(group: Group, probes: Sequence[str], key: str | None) -> Setting:
    finals = {}
    for probe in probes:
        final = Accuracy(group.mean(probe), group.accuracies(probe))
        interval = group_interval(group, probe)
        if interval is not None:
            final = final._replace(ends=(interval.low, interval.high))
        finals[PROBES[probe]] = final
    setting = Setting(group.label, finals, knn_curve(group))
    alone = gain_over_alone(group, probes[-1])
    if alone is not None:
        gain = Accuracy(alone.estimate, [], (alone.low, alone.high))
        setting = setting._replace(gain=gain)
    if key is not None:
        setting = setting._replace(value=group.values[key])
    return setting
