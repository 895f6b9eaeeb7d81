"""The section on accuracies of a report: a table with intervals, classes, and single models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedssl.core.files import integrity
from fedssl.evaluation.intervals import Interval
from fedssl.evaluation.probe_images import probe_images_name
from fedssl.evaluation.verdict import signed
from fedssl.pages.report.document import Part
from fedssl.pages.report.evaluation_images import class_names
from fedssl.pages.report.markup import Content, Markup, details, join, paragraph, table, tag
from fedssl.pages.report.strips import Axis, Mark, accuracy_axis, gain_axis, interval_strip
from fedssl.plots.run_picture import (
    NAMES,
    PROBES,
    counted_models,
    ordered_rows,
    probe_labels,
)
from fedssl.plots.style import model_title
from fedssl.runs.comparison_text import interval_text
from fedssl.runs.picture import row_intervals
from fedssl.runs.summary import RunSummary

MAX_CLASSES = 40  # rows of the table of classes
MAX_MODELS = 200  # rows of the table of models
MAX_COMPARED = 3  # rows that classes are compared with
MAX_MATRIX = 20  # classes of a confusion matrix
THIS_RUN = "this run"

Rows = Mapping[str, Mapping[str, Any]]


def accuracy_part(run: RunSummary) -> Part | None:
    """Return the accuracies of the run and its baselines; None if nothing was measured."""
    rows = run.results.get("table")
    content: list[Content] = []
    if rows:
        content += _own_accuracies(run, rows)
    if run.results.get("on", {}).get("table"):
        content += _other_accuracies(run)
    if not content:
        return None
    return Part("accuracy", "Accuracy", "Accuracy", content)


def _own_accuracies(run: RunSummary, rows: Rows) -> list[Content]:
    """Return the accuracies on the images of the experiment."""
    content: list[Content] = [_accuracies(run, rows)]
    gains = run.results.get("verdict", {}).get("gains", {})
    if gains:
        content += [tag("h3", "Gain over the baselines"), _gains(gains)]
    content.append(paragraph(_explanation(run), "muted"))
    content.append(_single_models(rows))
    content += _classes(run.folder, rows)
    return content


def _other_accuracies(run: RunSummary) -> list[Content]:
    """Return kNN on the images of `probe.on`, for the run and its baselines."""
    other = run.results["on"]
    rows: Rows = other["table"]
    name = "other images"
    if run.experiment.probe.on is not None:
        name = probe_images_name(run.experiment)
    marks = {}
    for row in ordered_rows(rows):
        score = rows[row]["knn"]
        marks[row] = Mark(score["mean"], None, counted_models(score))
    axis = accuracy_axis(marks.values())
    body: list[list[Content]] = []
    for row, mark in marks.items():
        label = NAMES.get(row, row)
        strip = interval_strip([mark], axis, 0, f"{label}: {_spoken([mark])}")
        body.append([label, _accuracy(mark), strip])
    headings: list[Content] = ["backbone", "kNN", axis.header("● kNN")]
    return [
        tag("h3", f"kNN on {name}"),
        table(headings, body, numbers=(1,)),
        paragraph(f"Accuracy in %; {other['measured_on']}.", "muted"),
    ]


def _explanation(run: RunSummary) -> str:
    sentences = ["Accuracy in %, with a 95% interval over test images"]
    if any(
        counted_models(score) for row in run.results["table"].values() for score in row.values()
    ):
        sentences.append("small dots are the models of single clients")
    if "measured_on" in run.results:
        sentences.append(run.results["measured_on"])
    return "; ".join(sentences) + "."


def _accuracies(run: RunSummary, rows: Rows) -> Markup:
    """Return a table of accuracies; marks of a row are in the order of the columns."""
    intervals = row_intervals(run.folder)
    marks: dict[str, list[Mark]] = {}
    probes = list(rows[THIS_RUN])
    for row in ordered_rows(rows):
        marks[row] = []
        for number, probe in enumerate(probes):
            score = rows[row][probe]
            hollow = number < len(probes) - 1
            ends = intervals.get((row, probe))
            marks[row].append(Mark(score["mean"], ends, counted_models(score), hollow))
    axis = accuracy_axis([mark for row in marks.values() for mark in row])
    names = probe_labels(probes, run.results.get("labelled", {}))
    headings: list[Content] = ["backbone", *map(names.__getitem__, probes), _axis(axis, probes)]
    body: list[list[Content]] = []
    for number, (row, own) in enumerate(marks.items()):
        name = NAMES.get(row, row)
        cells: list[Content] = [tag("span", name, class_="row-name")]
        for mark in own:
            cells.append(_accuracy(mark))
        strip = interval_strip(own, axis, number, f"{name}: {_spoken(own)}")
        body.append([*cells, strip])
    return table(headings, body, numbers=range(1, 1 + len(probes)))


def _axis(axis: Axis, probes: Sequence[str]) -> Markup:
    """Return the heading of the drawing: hollow marks are those of all probes but the last."""
    names = [PROBES.get(probe, probe) for probe in probes]
    text = f"● {names[-1]}"
    if len(names) > 1:
        text += f"  ○ {', '.join(names[:-1])}"
    return axis.header(text)


def _accuracy(mark: Mark) -> Markup:
    value = tag("strong", f"{mark.estimate:.1f}")
    if mark.ends is None:
        return value
    low, high = mark.ends
    return join(value, tag("span", f" {low:.1f} … {high:.1f}", class_="muted ends"))


def _spoken(marks: Sequence[Mark]) -> str:
    """Return marks as text for readers who do not see them."""
    return ", ".join(f"{mark.estimate:.1f}%" for mark in marks)


def _gains(gains: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Markup:
    marks: dict[str, list[Mark]] = {}
    probes = list(next(iter(gains.values())))
    for row, by_probe in gains.items():
        marks[row] = []
        for number, gain in enumerate(by_probe.values()):
            ends = (gain["low"], gain["high"])
            marks[row].append(Mark(gain["estimate"], ends, (), number < len(probes) - 1))
    axis = gain_axis([mark for row in marks.values() for mark in row])
    names = [PROBES.get(probe, probe) for probe in probes]
    body = []
    for number, (row, own) in enumerate(marks.items(), 1):
        cells: list[Content] = [NAMES.get(row, row)]
        for mark in own:
            assert mark.ends is not None
            text = interval_text(Interval(mark.estimate, *mark.ends))
            cells.append(tag("span", text, class_="ends"))
        label = ", ".join(f"{signed(mark.estimate)} points" for mark in own)
        body.append([*cells, interval_strip(own, axis, number, label)])
    headings = ["over", *names, axis.header("percentage points")]
    return table(headings, body, numbers=range(1, 1 + len(probes)))


def _single_models(rows: Rows) -> Markup:
    """Return the accuracies of single models of this run, on demand."""
    scores = rows[THIS_RUN]
    models = next(iter(scores.values())).get("models", {})
    if len(models) < 2:
        return join()
    body = []
    for model in list(models)[:MAX_MODELS]:
        accuracies = [f"{score['models'][model]:.1f}" for score in scores.values()]
        body.append([model_title(model), *accuracies])
    headings = ["model", *[PROBES.get(probe, probe) for probe in scores]]
    title = f"Single models ({len(models):,})"
    if len(models) > MAX_MODELS:
        title += f", the first {MAX_MODELS}"
    return details(title, table(headings, body, numbers=range(1, len(headings))))


def _classes(folder: Path, rows: Rows) -> list[Content]:
    """Return accuracies by class and a confusion matrix, from classes.json."""
    try:
        stored = integrity.read_json(folder, "classes.json") or {}
        own = stored["table"][THIS_RUN]
        probe, predictions = list(own.items())[-1]
        per_class = dict(predictions["per_class"])
        model, accuracies = next(iter(per_class.items()))
    except (ValueError, KeyError, TypeError, IndexError, StopIteration):
        return []
    names = class_names(stored.get("classes", ()), len(accuracies))
    name = PROBES.get(probe, probe)
    title = f"By class, {name}"
    if len(per_class) > 1:
        title += f", {model_title(model)}"
    compared: dict[str, Sequence[float | None]] = {}
    for row in rows:
        first = stored["table"].get(row, {}).get(probe, {}).get("per_class", {})
        if row != THIS_RUN and len(first) == 1 and len(compared) < MAX_COMPARED:
            compared[row] = next(iter(first.values()))
    matrix = predictions.get("confusion", {}).get(model)
    content = [_class_table(names, accuracies, compared)]
    if matrix is not None and len(matrix) <= MAX_MATRIX:
        content += [tag("h4", "Confusion: true classes are rows"), _matrix(names, matrix)]
    return [details(title, *content)]


def _class_table(
    names: Sequence[str],
    accuracies: Sequence[float | None],
    compared: Mapping[str, Sequence[float | None]],
) -> Markup:
    order = sorted(range(len(accuracies)), key=lambda label: accuracies[label] or 0.0)
    axis = Axis(0, 100)
    body = []
    for label in order[:MAX_CLASSES]:
        columns = [accuracies[label], *[values[label] for values in compared.values()]]
        cells: list[Content] = [names[label]]
        for value in columns:
            cells.append("" if value is None else f"{value:.1f}")
        marks = []
        for number, value in enumerate(columns):
            if value is not None:
                marks.append(Mark(value, hollow=number > 0))
        body.append([*cells, interval_strip(marks, axis, 0, f"{names[label]}: {_spoken(marks)}")])
    headings = ["class, worst first", THIS_RUN, *[NAMES.get(row, row) for row in compared]]
    numbers = range(1, len(headings))
    return table([*headings, axis.header("● this run")], body, numbers)


def _matrix(names: Sequence[str], matrix: Sequence[Sequence[int]]) -> Markup:
    """Return a confusion matrix as a table, in which larger shares of a row are darker."""
    body: list[Markup] = []
    for name, row in zip(names, matrix, strict=True):
        total = max(1, sum(row))
        cells = [tag("th", name, scope="row")]
        for count in row:
            shade = min(5, round(5 * (count / total) ** 0.5))
            cells.append(tag("td", str(count) if count else "·", class_=f"number shade-{shade}"))
        body.append(tag("tr", *cells))
    head = tag("tr", tag("th", ""), *[tag("th", name, scope="col") for name in names])
    whole = tag("table", tag("thead", head), tag("tbody", *body), class_="matrix")
    return tag("div", whole, class_="scroll", tabindex=0, role="region", aria_label="confusion")
