"""Decide whether the results in a run directory are up to date, or must be measured again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch

from fedssl.core.console import Notify
from fedssl.core.files import integrity
from fedssl.data import Dataset, Images
from fedssl.evaluation.evaluate import Evaluation


def hash_images(images: Images | None) -> str | None:
    """Return a hash of the pixels; None if there are no images."""
    if images is None:
        return None
    digest = hashlib.sha256()
    for chunk in images.pixel_rows.chunks(1024):
        digest.update(chunk.numpy().data)
    return digest.hexdigest()


def hash_labels(data: Dataset) -> str | None:
    """Return a hash of the labels that probes use; None if the test images have no labels.

    In that case no labels are loaded.
    """
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
    evaluation: Evaluation,
    rounds: int,
    hashes: Mapping[str, str | None],
    baselines: list[str],
    notify: Notify,
) -> bool:
    """True if the results there are those of this experiment, probes, test images and labels.

    `hashes` are those of test images and labels.
    """
    experiment = evaluation.experiment
    try:
        results = integrity.read_json(folder, "results.json")
    except ValueError:  # a directory of an earlier version, without hashes
        notify(f"{folder / 'results.json'} is damaged: the run is measured again")
        return False
    # Unverified: the process was killed between writing the file and recording its hash.
    if results is None or not integrity.verified(folder, "results.json"):
        return False
    if len(list(folder.glob("backbone*.safetensors"))) < results.get("models", 1):
        return False
    if experiment.probe.picture and not (folder / "picture.png").is_file():
        return False
    if results.get("table"):
        if not set(baselines) <= results["table"].keys():
            return False
        # Earlier versions recorded no settings of kNN; their default was 200 neighbours.
        earlier = evaluation.knn_settings | {"k": experiment.probe.k or 200}
        if results.get("knn_settings", earlier) != evaluation.knn_settings:
            return False
    expected = {"experiment": experiment.hash(), "rounds": rounds, **hashes}
    return all(results.get(key) == value for key, value in expected.items())
