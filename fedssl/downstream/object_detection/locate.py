"""Find the annotations and images of a data set, in the usual layouts or at explicit paths."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fedssl.core.errors import ConfigError

FOLDER_NAMES = {"train": ("train",), "val": ("val", "valid")}
LAYOUTS = (
    "annotations/instances_SPLIT*.json with images in SPLIT*/ or images/SPLIT*/, "
    "or SPLIT/_annotations.coco.json"
)


class Part(NamedTuple):
    """A file of annotations and the folder of its images."""

    annotations: Path
    images: Path


class ExplicitPaths(NamedTuple):
    """Paths named by the user; None: to be found."""

    annotations: Path | None = None
    images: Path | None = None


def locate(split: str, data: Path | None, explicit: ExplicitPaths) -> Part:
    """Return the `train` or `val` part of a data set; explicit paths have priority."""
    if explicit.annotations is not None and explicit.images is not None:
        return Part(explicit.annotations, explicit.images)
    if data is None:
        raise ConfigError(
            f"name the folder of a data set with --data, or its parts with --{split}-images "
            f"and --{split}-annotations"
        )
    if not data.is_dir():
        raise ConfigError(f"{data} is not a folder")
    parts = _search(split, data)
    if explicit.annotations is not None:
        parts = [part._replace(annotations=explicit.annotations) for part in parts[:1]]
    if len(parts) == 1:
        return parts[0]._replace(images=explicit.images or parts[0].images)
    problem = "has several parts" if parts else "has no part"
    raise ConfigError(
        f'{data} {problem} "{split}" in COCO\'s layout ({LAYOUTS.replace("SPLIT", split)}): '
        f"name it with --{split}-images and --{split}-annotations"
    )


def _search(split: str, data: Path) -> list[Part]:
    """Return the parts of a split in a folder, in either layout."""
    parts = []
    for word in FOLDER_NAMES[split]:
        for file in sorted((data / "annotations").glob(f"instances_{word}*.json")):
            name = file.stem.removeprefix("instances_")
            if word == "val" and name.startswith("valid"):
                continue  # found with the next word
            for folder in (data / name, data / "images" / name):
                if folder.is_dir():
                    parts.append(Part(file, folder))
                    break
        file = data / word / "_annotations.coco.json"
        if file.is_file():
            parts.append(Part(file, file.parent))
    return parts
