"""The top of a report on one run: the verdict, warnings, and what was run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fedssl.core.console import duration
from fedssl.core.files import integrity
from fedssl.experiment.experiment import Experiment
from fedssl.pages.report.command import command_again
from fedssl.pages.report.document import Part
from fedssl.pages.report.evaluation_images import ImageFacts
from fedssl.pages.report.markup import (
    Content,
    Markup,
    bullets,
    copyable,
    details,
    join,
    paragraph,
    tag,
)
from fedssl.pages.report.training import Training
from fedssl.runs.summary import RunSummary

MAX_LISTED = 8  # warnings and notes above the contents
VERDICT_STYLES = {"better": "good", "worse": "bad"}  # by the first word of a verdict


def head(run: RunSummary, training: Training, facts: ImageFacts) -> list[Content]:
    """Return the title, the verdict and the warnings."""
    values = run.experiment.to_dict()
    names = " × ".join(values[table]["name"] for table in ("method", "algorithm", "topology"))
    lines: list[Content] = [
        tag("p", names, class_="kicker"),
        tag("h1", run.folder.resolve().name),
        _verdict(run),
        tag("div", *_tiles(run, training), class_="tiles"),
    ]
    warnings = collect_warnings(run, training)
    if warnings:
        lines.append(notice("Warnings", warnings, "warning"))
    remarks = [note for note in run.results.get("notes", ()) if note not in warnings]
    remarks += facts.notes
    if remarks:
        lines.append(notice("Notes", remarks, "muted"))
    return lines


def notice(title: str, lines: Sequence[str], style: str) -> Markup:
    """Return a box with lines, of which the first are shown at once."""
    listed = MAX_LISTED
    if len(lines) == MAX_LISTED + 1:
        listed += 1
    first = bullets(lines[:listed])
    rest = join()
    if len(lines) > listed:
        rest = details(f"{len(lines) - listed} more", bullets(lines[listed:]))
    heading = tag("strong", title, class_=style)
    return tag("div", heading, first, rest, class_=f"notice notice-{style}", role="note")


def _verdict(run: RunSummary) -> Markup:
    """Return the verdict, or the reason why it is missing."""
    verdict = run.results.get("verdict", {})
    sentence = verdict.get("sentence")
    if sentence is None:
        return tag("div", paragraph(_no_verdict(run), "verdict"))
    style = VERDICT_STYLES.get(sentence.split(" ", 1)[0], "muted")
    text = verdict_line(sentence[:1].upper() + sentence[1:])
    advice = join()
    if verdict.get("advice"):
        advice = details("What would make this clearer", bullets(verdict["advice"]))
    return tag("div", text, advice, class_=f"verdict-box verdict-{style}")


def verdict_line(sentence: str) -> Markup:
    """Return a verdict with its judgement in bold."""
    details_begin = re.search(r", (?=[\d,]+ test images|without an interval)", sentence)
    end = len(sentence) if details_begin is None else details_begin.start()
    return tag("p", tag("strong", sentence[:end]), sentence[end:], class_="verdict")


def _no_verdict(run: RunSummary) -> str:
    if _damaged_results(run):
        return "There is no verdict: the results are damaged."
    if not run.results:
        return f"There is no verdict yet. State of the run: {run.state}."
    if run.results.get("table"):
        return "There is no verdict: an earlier version measured the run."
    sentence = "There is no verdict: the run has no labelled test images"
    if "on" in run.results:
        return f"{sentence}. Accuracy on other images is below."
    return f"{sentence}, so nothing was measured."


def _damaged_results(run: RunSummary) -> bool:
    """True if results.json exists but cannot be read."""
    try:
        integrity.read_json(run.folder, "results.json")
    except ValueError:
        return True
    return False


def _tiles(run: RunSummary, training: Training) -> list[Markup]:
    """Return the key figures of the run."""
    figures = []
    verdict = run.results.get("verdict", {})
    for probe, name in (("linear", "linear probe"), ("knn", "kNN")):
        accuracy = run.accuracy(probe)
        if accuracy is not None:
            ends = verdict.get("accuracies", {}).get("this run", {}).get(probe)
            text = f"{ends['low']:.1f} … {ends['high']:.1f}" if ends else ""
            figures.append(_tile(name, f"{accuracy:.1f}%", text))
    state = run.state.partition(",")[0]
    figures.append(_tile("rounds", f"{run.rounds:,}", f"of {run.experiment.rounds:,}, {state}"))
    figures.append(_tile("clients", f"{count_clients(run, training):,}", _participation(run)))
    figures.append(_tile("training time", duration(run.seconds), ""))
    total = training.total_up + training.total_down
    if total:
        # The log of a private run has no sizes of uploads.
        direction = "in both directions"
        if training.privacy is not None:
            direction = "to clients"
        figures.append(_tile("sent", data_size(total), direction))
    if training.privacy is not None and training.privacy.get("epsilon") is not None:
        privacy = training.privacy
        figures.append(_tile("ε", f"{privacy['epsilon']:.3g}", f"at δ = {privacy['delta']:g}"))
    return figures


def _tile(name: str, value: str, note: str) -> Markup:
    return tag(
        "div",
        tag("span", name, class_="tile-name"),
        tag("span", value, class_="tile-value"),
        tag("span", note, class_="tile-note"),
        class_="tile",
    )


def count_clients(run: RunSummary, training: Training) -> int:
    """Return the number of clients: those in the log, or more if not all have taken part yet."""
    return max(len(training.clients), run.experiment.clients or 0)


def _participation(run: RunSummary) -> str:
    share = getattr(run.experiment.topology, "participation", 1.0)
    if share == 1.0:
        return "all in every round"
    return f"{100 * share:g}% in every round"


def data_size(size: float) -> str:
    """Return an amount of data: "12.3 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def collect_warnings(run: RunSummary, training: Training) -> list[str]:
    """Return the warnings about a run, the most severe first, each once."""
    warnings: dict[str, None] = {}
    for name in integrity.damaged(run.folder):
        warnings[f"{name} is damaged: it does not match its hash. `fedssl run` repairs it"] = None
    if _damaged_results(run) and not warnings:  # an earlier version recorded no hash
        warnings["results.json is damaged. `fedssl run` measures the run again"] = None
    if training.failed:
        rounds = ", ".join(map(str, training.failed[:10]))
        text = f"{len(training.failed)} rounds failed, so the model did not change: {rounds}"
        warnings[text] = None
    warnings |= dict.fromkeys(training.warnings)
    return list(warnings)


def settings_part(run: RunSummary, training: Training, facts: ImageFacts) -> Part:
    """Return the section on what was run, and how to run it again."""
    items = []
    for name, value in describe_run(run, training, facts).items():
        items.append(tag("div", tag("dt", name), tag("dd", value)))
    device = run.results.get("environment", {}).get("device", "").partition(":")[0] or None
    command = command_again(run.experiment, run.folder, device)
    content = [
        tag("dl", *items, class_="facts"),
        tag("h3", "Run it again"),
        paragraph(command.note, "muted"),
        copyable(command.text),
    ]
    return Part("settings", "What was run", "Settings", content)


def describe_run(run: RunSummary, training: Training, facts: ImageFacts) -> dict[str, str]:
    """Return the main settings of a run as texts."""
    values = run.experiment.to_dict()
    method = values["method"]
    train = values["train"]
    described = {
        "Method": f"{method['name']}, backbone {method['backbone']}",
        "Algorithm": values["algorithm"]["name"],
        "Topology": values["topology"]["name"],
        "Clients": f"{count_clients(run, training):,}, {_participation(run)}",
        "Images": _images(values, facts),
        "Partition": _partition(run.experiment),
        "Rounds": f"{run.rounds:,} of {run.experiment.rounds:,}",
        "Local training": (
            f"{_epochs(train['epochs'])}, batches of {train['batch']}, "
            f"{train['optimizer']}, lr {train['lr']:g} ({train['schedule']})"
        ),
        "Mean": values["mean"]["name"],
        "Seed": str(run.experiment.seed),
        "Device": run.results.get("environment", {}).get("device", "unknown until it is measured"),
        "Training time": duration(run.seconds),
        "Last trained": f"{run.changed:%Y-%m-%d %H:%M}",
    }
    if run.results.get("secure_aggregation"):
        described["Uploads"] = "secure aggregation: the server saw sums only"
    return described


def _images(values: Mapping[str, Any], facts: ImageFacts) -> str:
    text = str(values["data"]["name"])
    if facts.training_images is not None:
        text += f", {facts.training_images:,} for training"
    if facts.test_images is not None:
        text += f", {facts.test_images:,} for testing"
    return text


def _epochs(count: int) -> str:
    return "1 epoch" if count == 1 else f"{count:,} epochs"


def _partition(experiment: Experiment) -> str:
    """Return the rule that dealt the images, with the settings that are not its defaults."""
    words = []
    for key, field in type(experiment.partition).model_fields.items():
        value = getattr(experiment.partition, key)
        if value is not None and value != field.default:
            words.append(f"{key} {value}")
    rule = str(experiment.to_dict()["partition"]["name"])
    return f"{rule} ({', '.join(words)})" if words else rule
