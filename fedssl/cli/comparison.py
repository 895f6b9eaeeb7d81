"""Print and draw a comparison of finished runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fedssl.cli.label_free import compare_without_labels, without_labels
from fedssl.core.console import duration, print_to_stderr
from fedssl.core.errors import ConfigError
from fedssl.core.files.atomic import write_atomic
from fedssl.core.rich_console import wide_console
from fedssl.core.similar_paths import suggest_path
from fedssl.evaluation.advice import PROBE_NAMES
from fedssl.evaluation.intervals import Interval
from fedssl.evaluation.score import rounded
from fedssl.evaluation.verdict import signed
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
    print(_explanation(groups, probes[-1]))
    for group in groups[1:]:
        print(conclusion(groups[0], group, probes))
    if picture is not None:
        print(f"picture  {picture}")


def _read_runs(paths: Sequence[Path]) -> list[RunSummary]:
    """Return the runs in some directories, each once.

    Unfinished runs are skipped with a message, except those that are named themselves.
    """
    runs: dict[Path, RunSummary] = {}
    for path in paths:
        if not path.is_dir():
            hint = suggest_path(path, Path.is_dir) or ": name the directories of finished runs"
            raise ConfigError(f"there is no folder {path}{hint}")
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
    alone = _any_alone(groups, probes[-1])
    if alone:
        table.add_column(f"over clients alone, {PROBES[probes[-1]]}", justify="right")
    if len(groups) > 1:
        table.add_column(f"gain, {PROBES[probes[-1]]} (95% interval)", justify="right")
        table.add_column("gain by seed", justify="right")
    table.add_column("training time", justify="right")
    for group in groups:
        cells = [f"{len(group.runs)}"]
        for probe in probes:
            cells.append(_mean_text(group, probe))
        if alone:
            cells.append(_interval_text(gain_over_alone(group, probes[-1])))
        if len(groups) > 1:
            cells.append(_gain_text(groups[0], group, probes[-1]))
            cells.append(_seed_gains_text(groups[0], group, probes[-1]))
        table.add_row(Text(group.label), *cells, duration(group.seconds))
    return table


def _mean_text(group: Group, probe: str) -> str:
    """Return "81.2 ± 0.4", or "81.2" for one seed."""
    text = f"{group.mean(probe):.1f}"
    std = group.std(probe)
    if std is not None:
        text += f" ± {std:.1f}"
    return text


def _gain_text(first: Group, group: Group, probe: str) -> str:
    """Return "+0.8 (−0.4 … +2.0)"; the difference alone if test images cannot be paired."""
    if group is first:
        return ""
    gain = paired_difference(first, group, probe)
    if gain is None:
        before, after = with_shared_seeds(first, group)
        return signed(after.mean(probe) - before.mean(probe))
    return _interval_text(gain)


def _interval_text(gain: Interval | None) -> str:
    """Return "+0.8 (−0.4 … +2.0)"; "" for None."""
    if gain is None:
        return ""
    return f"{signed(gain.estimate)} ({signed(gain.low)} … {signed(gain.high)})"


def _any_alone(groups: Sequence[Group], probe: str) -> bool:
    """True if the clients of some runs were also trained alone."""
    return any(gain_over_alone(group, probe) is not None for group in groups)


def _seed_gains_text(first: Group, group: Group, probe: str) -> str:
    """Return the lowest and the highest gain of single seeds, if both groups have two of them."""
    gains = seed_differences(first, group, probe)
    if group is first or len(gains) < 2:
        return ""
    return f"{signed(min(gains))} … {signed(max(gains))}"


def _explanation(groups: Sequence[Group], probe: str) -> str:
    """Return the lines below the table."""
    text = "accuracy in %, mean ± standard deviation over seeds"
    if _any_alone(groups, probe):
        text += (
            f"\nover clients alone: the gain of each row over its own clients that train alone, by "
            f"{PROBE_NAMES[probe]}, with a 95% interval over test images"
        )
    if len(groups) == 1:
        return text
    images = "test images"
    count = count_test_images(groups[0], probe)
    if count is not None:
        images = f"{count:,} test images"
    return (
        f"{text}\ngain over the first row by {PROBE_NAMES[probe]} on the same {images}, for seeds "
        "that both have\nthe interval covers the choice of test images; the gain by seed shows how much "
        "seeds matter"
    )


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
