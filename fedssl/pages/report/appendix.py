"""The last sections of a report: the experiment, versions, and what the page contains."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote

from fedssl.core.version import __version__
from fedssl.experiment.experiment import Experiment
from fedssl.pages.report.document import Part
from fedssl.pages.report.markup import Markup, copyable, details, paragraph, table, tag
from fedssl.runs.resume_checks import EXPERIMENT
from fedssl.runs.summary import RunSummary


def experiment_part(experiments: dict[str, Experiment]) -> Part:
    """Return the complete experiments by title, on demand."""
    content = []
    for title, experiment in experiments.items():
        content.append(_experiment(title, experiment))
    return Part("experiment", "Complete experiment", "Experiment", content)


def _experiment(title: str, experiment: Experiment) -> Markup:
    toml = experiment.to_toml()
    address = f"data:application/toml;charset=utf-8,{quote(toml)}"
    link = tag("a", f"Save as {EXPERIMENT}", href=address, download=EXPERIMENT)
    return details(title, copyable(toml), tag("p", link))


def versions_part(runs: Iterable[RunSummary], codes: Iterable[str], pictures: str) -> Part:
    """Return the versions that computed the runs and this page, and which pictures it shows."""
    rows = []
    for run in runs:
        environment = run.results.get("environment", {})
        values = [environment.get(key, "") for key in ("fedssl", "code", "torch", "python")]
        rows.append([run.folder.resolve().name, *values, environment.get("device", "")])
    headings = ["run", "fedssl", "code", "torch", "Python", "device"]
    known = ", ".join(codes) or "unknown"
    content = [
        table(headings, rows),
        paragraph(f"Code that trained: {known}. This page was made by fedssl {__version__}."),
        paragraph(pictures),
    ]
    return Part("versions", "Versions and contents", "Versions", content)
