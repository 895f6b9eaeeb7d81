"""Decide whether the results in a run directory are up to date, or must be measured again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch

from fedssl import integrity
from fedssl.data import Dataset, Images
from fedssl.data.progress import Say
from fedssl.experiment import Experiment


def hash_images(images: Images | None) -> str | None:
    if images is None:
        return None
    digest = hashlib.sha256()
    for part in images.held.chunks(1024):
        digest.update(part.numpy().data)
    return digest.hexdigest()


def hash_labels(data: Dataset) -> str | None:
    """A hash of all that probes learn from and are measured by; None, and no label looked at, if nothing is."""
    if data.test is None or not data.test.labelled:
        return None
    digest = hashlib.sha256()
    for images in (data.train, data.test):
        if images is not None and images.labelled:
            digest.update(images.labels.to(torch.int64).numpy().data)
        digest.update(b"|")
    return digest.hexdigest()


def is_up_to_date(
    folder: Path,
    experiment: Experiment,
    rounds: int,
    measured: Mapping[str, str | None],
    beside: list[str],
    say: Say,
) -> bool:
    """True if the results there are those of this experiment, probes, test images and labels included."""
    try:
        found = integrity.read_json(folder, "results.json")
    except ValueError:  # a directory of an earlier version, without hashes
        say(f"{folder / 'results.json'} is damaged: the run is measured again")
        return False
    if found is None or not integrity.verified(folder, "results.json"):  # a kill came between the file and its hash
        return False
    if len(list(folder.glob("backbone*.safetensors"))) < found.get("models", 1):
        return False
    drawn = not experiment.probe.picture or (folder / "picture.png").is_file()
    same = {"experiment": experiment.hash(), "rounds": rounds, **measured}
    compared = not found.get("table") or set(beside) <= found["table"].keys()
    return drawn and compared and all(found.get(key) == value for key, value in same.items())
