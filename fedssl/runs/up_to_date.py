"""Decide whether the results in a run directory are up to date, or must be measured again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedssl.core.console import Notify
from fedssl.core.files import integrity
from fedssl.engine.checkpoints.store import Store
from fedssl.evaluation.evaluate import Evaluation
from fedssl.experiment.baseline_names import UNTRAINED
from fedssl.runs.baselines import Baselines
from fedssl.runs.image_hashes import hash_learned_images

# Keys of results.json that tell results of the same models and images from others.
CHECKPOINTS = "checkpoints"
LEARNED_IMAGES = "training_images"


class Wanted(NamedTuple):
    """The measurement of a run that is wanted now."""

    evaluation: Evaluation
    rounds: int
    hashes: Mapping[str, str | None]  # of test images and labels
    baselines: list[str]
    privacy: Mapping[str, Any] | None = None  # with [privacy]: what the releases have cost

    def is_answered_by(self, results: Mapping[str, Any]) -> bool:
        """True if results are those of this experiment, probes, test images and labels."""
        experiment = self.evaluation.experiment
        if results.get("table"):
            if not set(self.baselines) <= results["table"].keys():
                return False
            # Earlier versions recorded no settings of kNN; their default was 200 neighbours.
            current = self.evaluation.knn_settings
            earlier = current | {"k": experiment.probe.k or 200}
            if results.get("knn_settings", earlier) != current:
                return False
        if results.get("privacy") != self.privacy:
            return False
        expected = {"experiment": experiment.hash(), "rounds": self.rounds, **self.hashes}
        return all(results.get(key) == value for key, value in expected.items())


def is_up_to_date(folder: Path, wanted: Wanted, notify: Notify) -> bool:
    """True if the results in a run directory are those that are wanted."""
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
    return wanted.is_answered_by(results)


def can_be_restored(results: Mapping[str, Any], wanted: Wanted, baselines: Baselines) -> bool:
    """True if kept results are what measuring the run now would give.

    Everything that decides them must be equal: the settings under [probe], the checkpoints of the
    run and of its baselines, images and labels. As for results that are up to date, the code and
    the device that measured do not matter.
    """
    if not results.get("table") or not wanted.is_answered_by(results):
        return False
    experiment = wanted.evaluation.experiment
    if results.get("probe") != experiment.to_dict()["probe"]:
        return False
    digests = checkpoint_digests(results["table"], baselines)
    if None in digests.values() or results.get(CHECKPOINTS) != digests:
        return False
    # Last: it reads all images.
    return LEARNED_IMAGES in results and (
        results[LEARNED_IMAGES] == hash_learned_images(wanted.evaluation.data)
    )


def checkpoint_digests(rows: Iterable[str], baselines: Baselines) -> dict[str, str | None]:
    """Return what identifies the trained models of each row; None if they are not here.

    Models before training follow from the experiment.
    """
    digests = {}
    for row in rows:
        if row not in UNTRAINED:
            digests[row] = Store(baselines.folder_of(row)).digest()
    return digests
