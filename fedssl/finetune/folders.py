"""Where annotations and images lie: as they are usually laid out, or as they are named one by one."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fedssl.errors import ConfigError

WORDS = {"train": ("train",), "val": ("val", "valid")}
LAYOUTS = "annotations/instances_SPLIT*.json with images in SPLIT*/ or images/SPLIT*/, or SPLIT/_annotations.coco.json"


class Part(NamedTuple):
    """Images and the file that says what is on them."""

    annotations: Path
    images: Path


class Given(NamedTuple):
    """What was named one by one."""

    annotations: Path | None = None
    images: Path | None = None


def locate(split: str, data: Path | None, given: Given) -> Part:
    """The `train` or `val` part of a folder; what is given goes before what is found."""
    if given.annotations is not None and given.images is not None:
        return Part(given.annotations, given.images)
    if data is None:
        raise ConfigError(
            f"name the folder of a data set with --data, or its parts with --{split}-images and --{split}-annotations"
        )
    if not data.is_dir():
        raise ConfigError(f"{data} is not a folder")
    found = _found(split, data)
    if given.annotations is not None:
        found = [part._replace(annotations=given.annotations) for part in found][:1]
    if given.images is not None:
        found = [part._replace(images=given.images) for part in found]
    if len(found) == 1:
        return found[0]
    problem = "has several parts" if found else "has no part"
    raise ConfigError(
        f'{data} {problem} "{split}" as COCO has it ({LAYOUTS.replace("SPLIT", split)}): name it with '
        f"--{split}-images and --{split}-annotations"
    )


def _found(split: str, data: Path) -> list[Part]:
    found = []
    for word in WORDS[split]:
        for file in sorted((data / "annotations").glob(f"instances_{word}*.json")):
            name = file.stem.removeprefix("instances_")
            if split == "val" and word == "val" and name.startswith("valid"):
                continue  # the next word's
            places = [place for place in (data / name, data / "images" / name) if place.is_dir()]
            found += [Part(file, place) for place in places[:1]]
        beside = data / word / "_annotations.coco.json"
        found += [Part(beside, beside.parent)] if beside.is_file() else []
    return found
