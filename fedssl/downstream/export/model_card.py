"""The model card of a folder in Hugging Face's layout: a README.md filled in from the run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from fedssl.core.version import __version__
from fedssl.downstream.backbone import TrainedBackbone
from fedssl.downstream.export.papers import papers_of
from fedssl.downstream.export.public_settings import data_name, public_settings
from fedssl.evaluation.advice import PROBE_NAMES
from fedssl.evaluation.verdict import AGAINST, THIS_RUN, line
from fedssl.experiment.experiment import Experiment
from fedssl.runs.private_run import note as privacy_note
from fedssl.runs.resume_checks import EXPERIMENT
from fedssl.runs.run import Run

ROW_NAMES = {THIS_RUN: "this backbone", **AGAINST}
MIN_NAME = 2  # characters of a client's name that is looked for in a remark


class RunFacts(NamedTuple):
    """What a card states about the run of a backbone."""

    experiment: Experiment
    results: Mapping[str, Any]
    clients: frozenset[str]  # those that took part


def facts_of(folder: Path) -> RunFacts | None:
    """Return the facts of a run directory, None of other places.

    Results are empty while the run is not finished.
    """
    if not (folder / EXPERIMENT).is_file():
        return None
    run = Run(folder, device="cpu")
    clients = set()
    for record in run.rounds:
        for entry in record["clients"]:
            clients.add(str(entry["client"]))
    return RunFacts(run.experiment, run.results, frozenset(clients))


def model_card(backbone: TrainedBackbone, facts: RunFacts | None) -> str:
    """Return the text of README.md. It has no path and no name of a client."""
    sections = [_front_matter(facts), _introduction(backbone, facts), _loading(backbone)]
    if facts is not None:
        sections.append(_training(backbone, facts))
        sections.append(_accuracy(facts))
    sections.append(_limits(backbone, facts))
    if facts is not None:
        sections.append(_citation(facts))
        sections.append(_settings(facts))
    return "\n\n".join(sections) + "\n"


def _front_matter(facts: RunFacts | None) -> str:
    tags = ["self-supervised-learning", "federated-learning", "image-feature-extraction"]
    lines = ["---", "# license: choose one and remove this comment", "library_name: fedssl"]
    lines.append("pipeline_tag: image-feature-extraction")
    if facts is not None:
        tags.append(facts.experiment.to_dict()["method"]["name"])
    lines.append(f"tags: [{', '.join(tags)}]")
    return "\n".join([*lines, "---"])


def _introduction(backbone: TrainedBackbone, facts: RunFacts | None) -> str:
    channels, height, width = backbone.preprocess.image
    colour = {1: "grey", 3: "RGB"}.get(channels, f"{channels}-channel")
    method = backbone.header.get("method", "a self-supervised method")
    trained = f"trained with {method}"
    if facts is not None:
        values = facts.experiment.to_dict()
        data = data_name(facts.experiment)
        algorithm = values["algorithm"]["name"]
        trained += f" by {algorithm} ({values['topology']['name']} topology) on {data}"
    return (
        f"# {backbone.name} backbone\n\n"
        f"A {backbone.name} without its classifier, {trained}. It maps {colour} images of "
        f"{height} × {width} pixels to {backbone.dim} features."
    )


def _loading(backbone: TrainedBackbone) -> str:
    return (
        "## How to load\n\n"
        "```python\n"
        "import fedssl\n\n"
        'backbone = fedssl.load_backbone("PATH_OF_THIS_FOLDER")  # eval mode\n'
        'features = backbone.features(["a.jpg", "b.png"])  # '
        f"(2, {backbone.dim})\n"
        "```\n\n"
        f"Preprocessing: {backbone.preprocess.describe()}. `preprocessor_config.json` has the "
        "numbers. `model.safetensors` holds the weights; nothing is pickled, and no code of this "
        "folder is executed."
    )


def _training(backbone: TrainedBackbone, facts: RunFacts) -> str:
    experiment = facts.experiment
    values = experiment.to_dict()
    environment = facts.results.get("environment", {})
    rows = {
        "data": data_name(experiment),
        "images": " × ".join(map(str, backbone.preprocess.image)) + " (channels, height, width)",
        "clients": str(len(facts.clients) or experiment.clients),
        "partition": values["partition"]["name"],
        "method": values["method"]["name"],
        "algorithm": values["algorithm"]["name"],
        "topology": values["topology"]["name"],
        "rounds": backbone.header.get("rounds", str(experiment.rounds)),
        "secure aggregation": "yes" if facts.results.get("secure_aggregation") else "no",
        "differential privacy": _privacy(facts),
        "norm bound of updates": _norm_bound(experiment),
        "merge": f"{values['mean']['name']} mean",
        "fedssl": environment.get("fedssl", backbone.header.get("fedssl", __version__)),
    }
    for package in ("torch", "python"):
        if package in environment:
            rows[package] = environment[package]
    return "## Training\n\n" + _table(("", ""), rows.items())


def _norm_bound(experiment: Experiment) -> str:
    if not experiment.guard.norm_bound:
        return "none"
    return f"{experiment.guard.norm_bound:g} times a typical update"


def _privacy(facts: RunFacts) -> str:
    privacy = facts.results.get("privacy")
    if privacy is not None:
        return privacy_note(privacy)
    if facts.experiment.privacy.enabled:
        return "enabled; its ε is known when the run is finished"
    return "none"


def _accuracy(facts: RunFacts) -> str:
    verdict = facts.results.get("verdict")
    if not facts.results:
        return "## Accuracy\n\nThe run is not finished, so no accuracy is stated."
    if verdict is None:
        return "## Accuracy\n\nNo accuracy was measured: there were no labelled test images."
    accuracies = verdict["accuracies"]
    probes = list(accuracies[THIS_RUN])
    labels = facts.results.get("labelled", {})
    heads = ["backbone"]
    for probe in probes:
        count = f", {labels[probe]:,} labels" if probe in labels else ""
        heads.append(f"{PROBE_NAMES.get(probe, probe).removeprefix('the ')}{count}")
    rows = []
    for name, figures in accuracies.items():
        cells = [_with_interval(figures[probe]) for probe in probes]
        rows.append((ROW_NAMES.get(name, name), *cells))
    parts = [
        "## Accuracy",
        f"Accuracy in % with its 95% interval, on {verdict['test_images']:,} test images; the "
        "interval covers the choice of test images, not the spread over seeds.",
        _table(heads, rows),
        line(verdict)[0].upper() + line(verdict)[1:] + ".",
    ]
    if "measured_on" in facts.results:
        parts.append(_sentence(facts.results["measured_on"]))
    return "\n\n".join(parts)


def _limits(backbone: TrainedBackbone, facts: RunFacts | None) -> str:
    _, height, width = backbone.preprocess.image
    limits = [
        f"The backbone was trained on images of {height} × {width} pixels. Other sizes, and images "
        "of another kind, were not measured."
    ]
    if facts is None:
        limits.append("This card was written without the run: its accuracy is not stated.")
        return "## Limits\n\n" + _bullets(limits)
    if not facts.experiment.privacy.enabled:
        limits.append(
            "It was trained without differential privacy: attacks on the weights may reveal "
            "properties of training images, or that an image was among them."
        )
    if facts.experiment.to_dict()["mean"]["name"] == "weighted":
        limits.append(
            "Updates were merged by a weighted mean, which does not detect a malicious update of "
            "normal size."
        )
    for note in _public_notes(facts):
        limits.append(_sentence(note))
    return "## Limits\n\n" + _bullets(limits)


def _public_notes(facts: RunFacts) -> list[str]:
    """Return the remarks on the results that name no client and no path."""
    notes = []
    for note in facts.results.get("notes", ()):
        words = set(re.findall(r"[^\s,;:()\"']+", note))
        names = {client for client in facts.clients if len(client) >= MIN_NAME and client in note}
        if not names and not words & facts.clients and "/" not in note:
            notes.append(note)
    return notes


def _citation(facts: RunFacts) -> str:
    papers = papers_of(facts.experiment)
    if not papers:
        return "## Citation\n\nCite fedssl, and the papers of the method and the algorithm."
    return "## Citation\n\nCite fedssl, and:\n\n" + _bullets(f"{paper}." for paper in papers)


def _settings(facts: RunFacts) -> str:
    settings = tomli_w.dumps(public_settings(facts.experiment)).strip()
    return (
        "## Settings\n\nAll settings but paths and names, which may be private.\n\n"
        f"```toml\n{settings}\n```"
    )


def _with_interval(figure: Mapping[str, float]) -> str:
    return f"{figure['estimate']:.1f} ({figure['low']:.1f} … {figure['high']:.1f})"


def _table(heads: Sequence[str], rows: Any) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for cells in rows:
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def _bullets(sentences: Any) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _sentence(text: str) -> str:
    text = text[0].upper() + text[1:]
    return text if text.endswith(".") else f"{text}."
