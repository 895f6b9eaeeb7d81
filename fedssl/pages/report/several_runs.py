"""The report on several runs: differences, accuracies with intervals, and curves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedssl.core.console import duration
from fedssl.evaluation.outcomes import read_outcomes
from fedssl.evaluation.verdict import judge
from fedssl.pages.report.appendix import experiment_part, versions_part
from fedssl.pages.report.charts import Chart
from fedssl.pages.report.command import command_again
from fedssl.pages.report.document import Document, Part
from fedssl.pages.report.markup import (
    Content,
    Markup,
    bullets,
    copyable,
    details,
    join,
    paragraph,
    table,
    tag,
)
from fedssl.pages.report.overview import verdict_line
from fedssl.pages.report.several_runs_curves import curves_part
from fedssl.pages.report.strips import Mark, accuracy_axis, gain_axis, interval_strip
from fedssl.pages.report.training import read_training
from fedssl.runs.comparable import check_comparable
from fedssl.runs.compare import (
    THIS_RUN,
    Group,
    conclusion,
    gain_over_alone,
    group_interval,
    group_runs,
    paired_difference,
)
from fedssl.runs.comparison_text import (
    PROBES,
    any_alone,
    explanation,
    gain_text,
    interval_text,
    mean_text,
    seed_gains_text,
)
from fedssl.runs.label_counts import label_counts
from fedssl.runs.label_free import EXPLANATION, METRICS, last_metrics, without_labels
from fedssl.runs.summary import RunSummary


def comparison_document(runs: Sequence[RunSummary]) -> Document:
    """Return the report on several runs; raise ConfigError if they cannot be compared."""
    labelled = not without_labels(runs)
    if labelled:
        check_comparable(runs)
    groups = group_runs(runs)
    trainings = {run.folder: read_training(run) for run in runs}
    charts: dict[str, Chart] = {}
    parts = []
    if labelled:
        probes = list(runs[0].results["table"][THIS_RUN])
        parts.append(_accuracy_part(groups, probes))
    else:
        probes = []
        parts.append(_metrics_part(runs))
    if len(groups) > 1:
        parts.append(_differences_part(groups))
    parts.append(curves_part(groups, trainings, charts))
    parts.append(_runs_part(groups, probes))
    parts.append(_experiments(groups))
    codes: dict[str, None] = {}
    for training in trainings.values():
        codes |= training.codes
    parts.append(versions_part(runs, codes, "This page contains no image of a data set."))
    title = _title(groups, runs)
    return Document(title, _head(title, groups, probes), parts, {"charts": charts})


def _title(groups: Sequence[Group], runs: Sequence[RunSummary]) -> str:
    if len(groups) == 1:
        return f"{len(runs)} seeds of {groups[0].label}"
    return f"{len(groups)} settings, {len(runs)} runs compared"


def _head(title: str, groups: Sequence[Group], probes: Sequence[str]) -> list[Content]:
    """Return the title and a sentence on each setting after the first."""
    lines: list[Content] = [tag("p", "fedssl report", class_="kicker"), tag("h1", title)]
    if not probes:
        return [*lines, paragraph("No run has labelled test images.", "verdict")]
    sentences = [conclusion(groups[0], group, probes) for group in groups[1:]]
    if len(groups) == 1:
        sentences = _verdict_over_seeds(groups[0])
    for sentence in sentences:
        lines.append(verdict_line(sentence))
    return lines


def _verdict_over_seeds(group: Group) -> list[str]:
    outcomes = [read_outcomes(run.folder) for run in group.runs]
    if not all(outcomes):
        return []
    verdict = judge(outcomes, label_counts(group.runs[0].results))
    return [verdict.sentence]


def _accuracy_part(groups: Sequence[Group], probes: Sequence[str]) -> Part:
    """Return the table of `fedssl compare` with its intervals drawn."""
    last = probes[-1]
    alone = any_alone(groups, last)
    headings: list[Content] = ["setting", "seeds", *map(PROBES.__getitem__, probes)]
    if alone:
        headings.append(f"over clients alone, {PROBES[last]}")
    if len(groups) > 1:
        headings += [f"gain, {PROBES[last]} (95% interval)", "gain by seed"]
    headings.append("training time")
    rows = []
    for group in groups:
        cells: list[Content] = [tag("strong", group.label), f"{len(group.runs)}"]
        for probe in probes:
            cells.append(mean_text(group, probe))
        if alone:
            cells.append(interval_text(gain_over_alone(group, last)))
        if len(groups) > 1:
            cells += [gain_text(groups[0], group, last), seed_gains_text(groups[0], group, last)]
        rows.append([*cells, duration(group.seconds)])
    content: list[Content] = [_drawn(groups, probes), tag("h3", "In numbers")]
    content.append(table(headings, rows, numbers=range(1, len(headings))))
    content.append(tag("div", bullets(explanation(groups, last).splitlines()), class_="muted"))
    return Part("accuracy", "Accuracy", "Accuracy", content)


def _drawn(groups: Sequence[Group], probes: Sequence[str]) -> Markup:
    """Return a table with the accuracies, and the gains by the last probe, as drawings."""
    last = probes[-1]
    marks = [[_mark(group, probe, probe != last) for probe in probes] for group in groups]
    axis = accuracy_axis([mark for row in marks for mark in row])
    names = f"● {PROBES[last]}"
    if len(probes) > 1:
        names += f", ○ {PROBES[probes[0]]}"
    headings: list[Content] = ["setting", axis.header(f"accuracy in % ({names})")]
    gains = []
    for group in groups[1:]:
        gain = paired_difference(groups[0], group, last)
        if gain is not None:
            gains.append(Mark(gain.estimate, (gain.low, gain.high)))
    drawn = len(groups) > 1 and len(gains) == len(groups) - 1
    differences = gain_axis(gains)
    if drawn:
        headings.append(differences.header(f"gain over the first, {PROBES[last]}, points"))
    rows = []
    for number, group in enumerate(groups):
        spoken = ", ".join(f"{mark.estimate:.1f}%" for mark in marks[number])
        cells: list[Content] = [group.label]
        cells.append(interval_strip(marks[number], axis, number, f"{group.label}: {spoken}"))
        if drawn:
            own = gains[number - 1 : number] if number else []
            cells.append(_gain_strip(own, differences, number))
        rows.append(cells)
    return table(headings, rows)


def _gain_strip(own: Sequence[Mark], axis: Any, number: int) -> Markup:
    if not own:
        return join()
    return interval_strip(own, axis, number, f"{own[0].estimate:+.1f} points")


def _mark(group: Group, probe: str, hollow: bool) -> Mark:
    interval = group_interval(group, probe)
    ends = None if interval is None else (interval.low, interval.high)
    seeds = group.accuracies(probe)
    return Mark(group.mean(probe), ends, seeds if len(seeds) > 1 else (), hollow)


def _metrics_part(runs: Sequence[RunSummary]) -> Part:
    """Return the metrics of runs without labels."""
    rows = []
    for run in runs:
        cells: list[Content] = [run.folder.resolve().name]
        for value in last_metrics(run).values():
            cells.append("" if value is None else f"{value:.3g}")
        rows.append([*cells, duration(run.seconds)])
    headings = ["run", *METRICS.values(), "training time"]
    content = [table(headings, rows, range(1, len(headings))), paragraph(EXPLANATION, "muted")]
    return Part("metrics", "Metrics without labels", "Metrics", content)


def _differences_part(groups: Sequence[Group]) -> Part:
    """Return the settings in which the groups differ."""
    keys: dict[str, None] = {}
    for group in groups:
        keys |= dict.fromkeys(group.values)
    rows = []
    for key in keys:
        cells: list[Content] = [tag("code", key)]
        for group in groups:
            value = group.values.get(key)
            cells.append("–" if value is None else str(value))
        rows.append(cells)
    content = [table(["setting", *[group.label for group in groups]], rows)]
    return Part("differences", "Differences", "Differences", content)


def _experiments(groups: Sequence[Group]) -> Part:
    """Return one experiment of each setting: those of other seeds differ in the seed only."""
    experiments = {}
    for group in groups:
        first = group.runs[0].experiment
        experiments[f"{group.label} (seed {first.seed})"] = first
    return experiment_part(experiments)


def _runs_part(groups: Sequence[Group], probes: Sequence[str]) -> Part:
    """Return every run with its accuracies, and a command for each setting."""
    rows = []
    commands = []
    names = _names([run for group in groups for run in group.runs])
    for group in groups:
        first = group.runs[0]
        command = command_again(first.experiment, first.folder, None)
        title = f"{group.label}, seed {first.experiment.seed}: {command.note}"
        commands += [paragraph(title), copyable(command.text)]
        for run in group.runs:
            cells: list[Content] = [names[run.folder], group.label, str(run.experiment.seed)]
            for probe in probes:
                accuracy = run.accuracy(probe)
                cells.append("" if accuracy is None else f"{accuracy:.1f}")
            rows.append([*cells, f"{run.rounds:,}", duration(run.seconds)])
    headings = ["run", "setting", "seed", *map(PROBES.__getitem__, probes), "rounds", "time"]
    listed = table(headings, rows, numbers=range(2, len(headings)))
    content = [listed, details("Commands that run them again", *commands)]
    return Part("runs", "Runs", "Runs", content)


def _names(runs: Sequence[RunSummary]) -> dict[Path, str]:
    """Return the name of each directory; its path as the user wrote it if names repeat."""
    names = {}
    counts = Counter(run.folder.resolve().name for run in runs)
    for run in runs:
        name = run.folder.resolve().name
        names[run.folder] = name
        if counts[name] > 1:
            names[run.folder] = str(run.folder)
    return names
