"""Print and draw a comparison of finished runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fedssl.cli.wide_console import wide_console
from fedssl.core.console import duration, print_to_stderr
from fedssl.core.errors import ConfigError
from fedssl.core.files.atomic import write_atomic
from fedssl.evaluation.intervals import Interval
from fedssl.evaluation.score import rounded
from fedssl.evaluation.verdict import PROBE_NAMES, signed
from fedssl.plots.comparison import Accuracy, Setting, draw_comparison
from fedssl.plots.style import encode_png, need_matplotlib
from fedssl.runs.compare import (
    Group,
    check_comparable,
    count_test_images,
    group_interval,
    group_runs,
    knn_curve,
    paired_difference,
    seed_differences,
    swept_key,
    with_shared_seeds,
)
from fedssl.runs.summary import RunSummary, find_runs, summarise

PROBES = {"knn": "kNN", "linear": "linear"}  # of a finished run, with the headings of their columns
BARS = "95% interval over test images"


def compare_runs(paths: Sequence[Path], out: Path, as_json: bool) -> None:
    """Compare all runs in some directories: print a table and write a picture."""
    runs = _read_runs(paths)
    if len(runs) < 2:
        raise ConfigError(
            f"a comparison needs at least two measured runs (got {len(runs)}): name another run "
            "directory, or a folder that contains several"
        )
    check_comparable(runs)
    groups = group_runs(runs)
    probes = [probe for probe in PROBES if runs[0].accuracy(probe) is not None]
    drawn = _draw(groups, probes, out)
    if as_json:
        print(json.dumps(_as_values(groups, probes) | {"picture": str(out) if drawn else None}))
        return
    wide_console().print(_table(groups, probes))
    print(_explanation(groups, probes[-1]))
    if drawn:
        print(f"picture  {out}")


def _read_runs(paths: Sequence[Path]) -> list[RunSummary]:
    """Return the runs in some directories, each once.

    Unfinished runs are skipped with a message, except those that are named themselves.
    """
    runs: dict[Path, RunSummary] = {}
    for path in paths:
        if not path.is_dir():
            raise ConfigError(f"there is no folder {path}: name the directories of finished runs")
        folders = find_runs(path)
        if not folders:
            raise ConfigError(
                f"{path} is not a run directory and contains none: name directories that "
                "`fedssl run` has written; `fedssl runs` lists them"
            )
        for folder in folders:
            run = summarise(folder)
            if folder != path and not run.results.get("table"):
                print_to_stderr(f"{folder} is left out: it has no accuracy ({run.state})")
                continue
            runs.setdefault(folder.resolve(), run)
    return list(runs.values())


def _table(groups: Sequence[Group], probes: Sequence[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("run")
    table.add_column("seeds", justify="right")
    for probe in probes:
        table.add_column(PROBES[probe], justify="right", no_wrap=True)
    if len(groups) > 1:
        table.add_column(f"gain, {PROBES[probes[-1]]} (95% interval)", justify="right")
        table.add_column("gain by seed", justify="right")
    table.add_column("training time", justify="right")
    for group in groups:
        cells = [f"{len(group.runs)}"]
        cells += [_mean_text(group, probe) for probe in probes]
        if len(groups) > 1:
            cells.append(_gain_text(groups[0], group, probes[-1]))
            cells.append(_seed_gains_text(groups[0], group, probes[-1]))
        table.add_row(Text(group.label), *cells, duration(group.seconds))
    return table


def _mean_text(group: Group, probe: str) -> str:
    """Return "81.2 ± 0.4", or "81.2" for one seed."""
    std = group.std(probe)
    text = f"{group.mean(probe):.1f}"
    return text if std is None else f"{text} ± {std:.1f}"


def _gain_text(first: Group, group: Group, probe: str) -> str:
    """Return "+0.8 (−0.4 … +2.0)"; the difference alone if test images cannot be paired."""
    if group is first:
        return ""
    gain = paired_difference(first, group, probe)
    if gain is None:
        before, after = with_shared_seeds(first, group)
        return signed(after.mean(probe) - before.mean(probe))
    return f"{signed(gain.estimate)} ({signed(gain.low)} … {signed(gain.high)})"


def _seed_gains_text(first: Group, group: Group, probe: str) -> str:
    """Return the lowest and the highest gain of single seeds, if both groups have two of them."""
    gains = seed_differences(first, group, probe)
    if group is first or len(gains) < 2:
        return ""
    return f"{signed(min(gains))} … {signed(max(gains))}"


def _explanation(groups: Sequence[Group], probe: str) -> str:
    """Return the lines below the table."""
    text = "accuracy in %, mean ± standard deviation over seeds"
    if len(groups) == 1:
        return text
    count = count_test_images(groups[0], probe)
    images = "test images" if count is None else f"{count:,} test images"
    return (
        f"{text}\ngain over the first row by {PROBE_NAMES[probe]} on the same {images} and for the "
        "same seeds\nthe interval covers the choice of test images; the gain by seed shows how much "
        "seeds matter"
    )


def _as_values(groups: Sequence[Group], probes: Sequence[str]) -> dict[str, Any]:
    """Return the comparison as plain values."""
    rows = []
    for group in groups:
        row: dict[str, Any] = {
            "label": group.label,
            "settings": dict(group.values),
            "runs": [str(run.folder) for run in group.runs],
            "seeds": group.seeds,
            "seconds": group.seconds,
        }
        for probe in probes:
            row[probe] = {
                "mean": group.mean(probe),
                "std": group.std(probe),
                "accuracies": group.accuracies(probe),
                "interval": _plain(group_interval(group, probe)),
                "gain": _plain(paired_difference(groups[0], group, probe)),
                "gain_by_seed": seed_differences(groups[0], group, probe),
            }
        rows.append(row)
    return {
        "test_images": count_test_images(groups[0], probes[-1]),
        "swept": swept_key(groups),
        "groups": rows,
    }


def _plain(interval: Interval | None) -> dict[str, float] | None:
    if interval is None:
        return None
    return {key: rounded(value) for key, value in interval._asdict().items()}


def _draw(groups: Sequence[Group], probes: Sequence[str], out: Path) -> bool:
    """Write the picture; return False and print why if matplotlib is missing."""
    try:
        need_matplotlib()
    except ConfigError as problem:
        print_to_stderr(f"no picture: {problem}")
        return False
    key = swept_key(groups)
    settings = [_setting(group, probes, key) for group in groups]
    write_atomic(out, encode_png(draw_comparison(settings, key, BARS)))
    return True


def _setting(group: Group, probes: Sequence[str], key: str | None) -> Setting:
    finals = {}
    for probe in probes:
        interval = group_interval(group, probe)
        ends = (None, None) if interval is None else (interval.low, interval.high)
        finals[PROBES[probe]] = Accuracy(group.mean(probe), group.accuracies(probe), *ends)
    value = None if key is None else group.values[key]
    return Setting(group.label, finals, knn_curve(group), value)
