"""Write an experiment for a folder of images and print what was found."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch

from fedssl.core.console import print_to_stderr
from fedssl.core.errors import ConfigError
from fedssl.core.suggestions import suggest
from fedssl.data.inspect_folder import LAYOUTS, FolderSummary, inspect_folder
from fedssl.experiment.draft import Choices, choose_size, draft
from fedssl.experiment.experiment import Experiment
from fedssl.views.presets import PRESETS

LISTED = 5  # clients or classes that are printed by name


def write_experiment(folder: Path, file: Path, *, views: str | None, layout: str | None) -> None:
    """Inspect a folder, write an experiment for it, and print a summary and the next commands."""
    _check_choice("view preset", views, PRESETS)
    _check_choice("layout", layout, LAYOUTS)
    summary = inspect_folder(folder, print_to_stderr, layout)
    pictures = find_spec("matplotlib") is not None and find_spec("sklearn") is not None
    choices = Choices(views, torch.cuda.is_available(), pictures)
    text = draft(folder, summary, choices)
    Experiment.from_toml(text, str(file)).check()
    file.write_text(text, "utf-8")
    for line in describe(summary):
        print(line)
    print(f"wrote {file}; next:")
    print(f"  fedssl partition {file}   # who has which images")
    print(f"  fedssl views {file}       # what clients train on")
    print(f"  fedssl run {file}")


def _check_choice(noun: str, value: str | None, known: object) -> None:
    names = list(known)  # type: ignore[call-overload]
    if value is not None and value not in names:
        hint = suggest(value, names) or f"; known: {', '.join(names)}"
        raise ConfigError(f'unknown {noun} "{value}"{hint}')


def describe(summary: FolderSummary) -> list[str]:
    """Return what was found in a folder, in a few lines."""
    lines = [f"{summary.images:,} images, half of them at least {summary.side} pixels a side"]
    if summary.grey:
        lines[0] += ", all grey"
    if summary.groups:
        kind = "clients" if summary.by_client else "classes"
        names = list(summary.groups)
        shown = ", ".join(f"{name} ({summary.groups[name]:,})" for name in names[:LISTED])
        more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
        lines.append(f"{len(names)} {kind}: {shown}{more}")
    if summary.classes and summary.by_client:
        shown = ", ".join(summary.classes[:LISTED])
        more = f" and {len(summary.classes) - LISTED} more" if len(summary.classes) > LISTED else ""
        lines.append(f"{len(summary.classes)} classes: {shown}{more}")
    lines.append(f'layout "{summary.layout}": {summary.reason}')
    if summary.test is not None:
        lines.append(f"test images in {summary.test}")
    if summary.smallest_side < choose_size(summary.side, gpu=False):
        lines.append(f"the smallest image has {summary.smallest_side} pixels: it is enlarged")
    return lines
