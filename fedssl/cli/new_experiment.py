"""Write an experiment for a folder of images and print what was detected."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import torch

from fedssl.core.console import ignore_message, joined, print_to_stderr
from fedssl.core.errors import ConfigError
from fedssl.core.missing_paths import no_folder
from fedssl.core.suggestions import suggest
from fedssl.data.download import find_path
from fedssl.data.folder_listing import list_image_files, printable, subfolders
from fedssl.data.inspect_folder import LAYOUTS, FolderSummary, inspect_folder
from fedssl.experiment.draft import (
    OTHER_LAYOUTS,
    Choices,
    choose_clients,
    choose_holdout,
    choose_preset,
    choose_size,
    draft,
    trained_clients,
)
from fedssl.experiment.draft_fit import choose_background, side_text
from fedssl.experiment.experiment import Experiment
from fedssl.views.presets import PRESETS

MAX_LISTED = 5  # clients or classes that are printed by name
MACHINES = ("cpu", "gpu")
DATA_DIR = Path("data")  # the default of --data-dir


def write_experiment(
    folder: Path,
    file: Path,
    *,
    views: str | None,
    layout: str | None,
    machine: str | None,
    test: Path | None = None,
) -> None:
    """Inspect a folder, write an experiment for it, and print a summary and the next commands."""
    _check_choice("view preset", views, PRESETS)
    _check_choice("layout", layout, LAYOUTS)
    _check_choice("machine", machine, MACHINES)
    _check_outside(folder, file)
    if test is not None:
        test = _labelled(test)
    summary = inspect_folder(folder, print_to_stderr, layout)
    pictures = find_spec("matplotlib") is not None and find_spec("sklearn") is not None
    gpu = machine == "gpu" or (machine is None and torch.cuda.is_available())
    choices = Choices(views, gpu, pictures, test)
    text = draft(path_to_write(folder), summary, choices)
    Experiment.from_toml(text, str(file)).check()
    file.write_text(text, "utf-8")
    for line in describe(folder, summary, choices):
        print(line)
    name = shlex.quote(str(file))
    print(f"wrote {name}, which explains every setting; next:")
    print(f"  fedssl partition {name}   # prints the number of images per client")
    print(f"  fedssl views {name}       # draws views.png: training images, each with random views")
    print(f"  fedssl run {name}         # trains and measures")


def _labelled(test: Path) -> Path:
    """Return the path of a folder of labelled images; raise ConfigError if it is none."""
    if not test.is_dir():
        raise ConfigError(f"--test: {no_folder(test)}")
    if not subfolders(test):
        raise ConfigError(f"--test: {test} needs one folder of images for each class; it has none")
    return path_to_write(test)


def _check_choice(noun: str, value: str | None, known: Iterable[str]) -> None:
    names = list(known)
    if value is not None and value not in names:
        hint = suggest(value, names) or f"; known: {', '.join(names)}"
        raise ConfigError(f'unknown {noun} "{value}"{hint}')


def _check_outside(folder: Path, file: Path) -> None:
    """Raise ConfigError if runs, or the experiment, would be written among the images."""
    images = folder.resolve()
    if Path.cwd().is_relative_to(images):
        raise ConfigError(
            f"the working directory is in the folder of images {folder}, so runs would be written "
            "among the images: change to a directory outside of it and run this again"
        )
    if file.resolve().is_relative_to(images):
        raise ConfigError(f"{file} would be among the images in {folder}: choose another file")


def path_to_write(folder: Path) -> Path:
    """Return the path of a folder for an experiment: relative if it is in the working directory.

    It is absolute as well if the relative path would be found in the data directory.
    """
    absolute = Path(os.path.abspath(folder))  # not resolved: links stay as they are
    relative = Path(os.path.relpath(absolute))
    inside = absolute.is_relative_to(Path.cwd())
    if inside and find_path(str(relative), DATA_DIR).samefile(absolute):
        return relative
    return absolute


def describe(folder: Path, summary: FolderSummary, choices: Choices) -> list[str]:
    """Return what was detected in a folder, why, and how to change it, one line for each."""
    details = {
        "layout": f"{summary.layout}: {summary.reason}; {OTHER_LAYOUTS[summary.layout]}",
        "clients": _clients(summary),
    }
    if summary.classes:
        details["classes"] = _listed(summary.classes)
    details["test"] = _test(summary)
    if choices.test is not None:
        details["test"] = _labelled_images(choices.test)
    details["size"] = _size(summary, choices.gpu)
    details |= _fit(summary)
    preset, reason = choose_preset(folder, summary, choices)
    others = " or ".join(sorted(PRESETS.keys() - {preset}))
    details["views"] = f"{preset}: {reason}; --views {others} for others"
    details["machine"] = "CPU: a small network; --machine gpu for resnet18"
    if choices.gpu:
        details["machine"] = "GPU: resnet18; --machine cpu for a small network"
    lines = [f"{_files(summary.images)} in {printable(str(folder))}"]
    if summary.outside:
        lines.append(f"  left out  {_files(summary.outside)} outside of the layout's folders")
    if summary.unreadable:
        bad = f"{summary.unreadable:,} of {_files(summary.sampled)} that were opened"
        lines.append(f"  left out  files that are no images: {bad}")
    for name, text in details.items():
        lines.append(f"  {name:8}  {text}")
    return lines


def _files(count: int) -> str:
    return f"{count:,} file" + "s" * (count != 1)


def _clients(summary: FolderSummary) -> str:
    if not summary.by_client:
        return f"{choose_clients(summary)}, simulated: the images are split over them"
    unit = " files" if summary.unreadable else ""  # not all of them are images
    listed = _listed([f"{name} ({count:,}{unit})" for name, count in summary.groups.items()])
    if trained_clients(summary) > 1:
        return listed
    return f"{listed}; only one can train, --layout flat simulates several"


def _listed(names: list[str]) -> str:
    """Return the number of names and the first of them."""
    return f"{len(names)}: {joined(list(map(printable, names)), MAX_LISTED)}"


def _test(summary: FolderSummary) -> str:
    holdout = choose_holdout(summary)
    if summary.test is not None:
        return f"images in {printable(str(summary.test))}"
    if holdout:
        return f"{holdout:,} images that are kept out of training (data.holdout)"
    return "no labelled images, so no accuracy is measured; data.test adds some at any time"


def _labelled_images(folder: Path) -> str:
    """Return the number of images and the classes in a folder of labelled images."""
    names, _ = list_image_files(folder, folder, 1, separate_subfolders=False, notify=ignore_message)
    classes = sorted({name.partition(os.sep)[0] for name in names})
    images = f"{len(names):,} image" + "s" * (len(names) != 1)
    noun = "class" + "es" * (len(classes) != 1)
    listed = joined(list(map(printable, classes)), MAX_LISTED)
    return f"labelled images in {printable(str(folder))}: {images}, {len(classes)} {noun}: {listed}"


def _fit(summary: FolderSummary) -> dict[str, str]:
    """Return lines on images that are no squares, and on the background colour if it is set."""
    details = {}
    if summary.fit == "pad":
        details["fit"] = (
            f"pad: cropped to squares, half of the images would lose {summary.lost:.0%} of their "
            'area or more; "crop" if only the middle matters (data.fit)'
        )
    elif summary.lost or summary.elongated:
        details["fit"] = (
            f"crop: half of the images lose {summary.lost:.0%} of their area or less, "
            f"{summary.elongated} of {summary.readable} more than a third; "
            '"pad" keeps all of it (data.fit)'
        )
    background = choose_background(summary)
    if background is not None:
        colour, reason = background
        other = "black" if colour == "white" else "white"
        details["fill"] = f'{colour}: {reason}; or "{other}" (data.background)'
    return details


def _size(summary: FolderSummary, gpu: bool) -> str:
    size = choose_size(summary.side, gpu)
    text = f"{size} pixels a side; {side_text(summary)}"
    if summary.grey:
        text += ", all are grey"
    if summary.smallest_side < size:
        text += f", the smallest has {summary.smallest_side} and is enlarged"
    return f"{text} (data.size)"
