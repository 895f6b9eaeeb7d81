"""The labelled images of an experiment: those that probes learn from and are tested on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import torch

from fedssl.core.errors import ConfigError
from fedssl.core.seeds import generator
from fedssl.data import Dataset, Images
from fedssl.evaluation.missing_labels import missing_labels
from fedssl.experiment.client_data import left_out
from fedssl.experiment.experiment import Experiment
from fedssl.probes import LINEAR, PROBES, balanced, fine_tuning, label_count

HALVED = (
    "the training images have no labels: probes learn from one half of the labelled test images "
    "and are measured on the other"
)
PROBE_NAMES = {"knn": "kNN"}
SEEN = "the images used for fine-tuning were also used in pre-training"
FROZEN = (
    "frozen: the head alone was trained, on features in evaluation mode; the papers fine-tune the "
    'whole model, and the authors\' code (EasyFL) has protocol = "easyfl"'
)
HEAD_ONLY = (
    "the head alone was trained, on a backbone whose BatchNorm statistics changed, as in the "
    "authors' code (EasyFL); the papers fine-tune the whole model"
)
AUGMENTED = (
    "the classifier learned from augmented images, and its first epoch estimated the backbone's "
    "BatchNorm statistics anew on the labelled images, as in the authors' code (Dec-SSL)"
)
FEW_LABELS = 0.01  # share of labelled images for `semi`, unless an experiment sets one


class LabelledSubset(NamedTuple):
    """Labelled images to fine-tune with."""

    images: Images
    share: float  # of all labelled images
    note: str | None  # for the results


class LabelledImages:
    """The images that probes learn from and are tested on. Labels are loaded when first needed."""

    def __init__(self, experiment: Experiment, data: Dataset, seen: bool) -> None:
        """`seen`: models were pre-trained on these images, except those that were left out."""
        self.experiment = experiment
        self.data = data
        self._seen = seen
        self.note = HALVED if self.possible and not data.train.labelled else None

    @property
    def possible(self) -> bool:
        """True if there are labelled images to test on and to learn from."""
        return missing_labels(self.data) is None

    @property
    def train(self) -> Images:
        """The images that probes learn from."""
        return self._sets[0]

    @property
    def test(self) -> Images:
        """The images that probes are tested on."""
        return self._sets[1]

    @cached_property
    def _sets(self) -> tuple[Images, Images]:
        problem = missing_labels(self.data, trained_on=self._seen)
        if problem is not None:
            raise ConfigError(problem)
        test = self.data.test
        assert test is not None
        if self.data.train.labelled:
            return self.data.train, test
        return _halves(test)

    @cached_property
    def classes(self) -> int:
        """The number of classes; a classifier may have more than there are images of."""
        classes = max(getattr(self.experiment.method, "classes", 0), len(self.test.classes))
        for images in self._sets:
            classes = max(classes, int(images.labels.max()) + 1)
        return classes

    def learned_from(self, probe: str) -> int:
        """Return the number of labelled images that a probe learns from."""
        learns = PROBES[probe].learns
        if learns == "all":
            return min(self._requested(probe), len(self.train))
        if learns == "few":
            return len(self.fine_tuning_subset.images)
        return 0

    def description(self, probes: Sequence[str]) -> str:
        """Return a sentence about the images that probes learn from and are tested on."""
        pool = f"{len(self.train):,}"
        fewer = []
        for probe in probes:
            count = self.learned_from(probe)
            if count != len(self.train):
                fewer.append(f"{PROBE_NAMES.get(probe, probe)}: {count:,} of them")
        exceptions = f" ({', '.join(fewer)})" if fewer else ""
        tested = f"{len(self.test):,}"
        if self.data.train.labelled:
            kind = "held-out" if self.experiment.data.holdout else "test"
            return (
                f"probes learned from {pool} labelled training images{exceptions} and were tested "
                f"on {tested} {kind} images"
            )
        labelled = f"{len(self.train) + len(self.test):,}"
        return (
            f"probes learned from {pool} of the {labelled} labelled test images{exceptions} and "
            f"were tested on the other {tested}: the training images have no labels"
        )

    def _requested(self, probe: str) -> int:
        """Return the number of labelled images that the settings ask for; `labels = 0` is all."""
        labels = self.experiment.probe.labels
        labelled = len(self.train)
        if labels and "labels" in PROBES[probe].uses:
            return label_count(labels, labelled)
        return labelled

    def notes(self, probe: str) -> list[str]:
        """Return remarks on what is unusual about measuring with a probe."""
        settings = self.experiment.probe
        uses = PROBES[probe].uses
        labelled = len(self.train)
        notes = [self.note]
        if PROBES[probe].learns == "few":
            notes.append(self.fine_tuning_subset.note)
        if "frozen" in uses and settings.frozen:
            notes.append(FROZEN)
        elif PROBES[probe].learns == "few" and fine_tuning(settings.protocol, 1).head_only:
            notes.append(HEAD_ONLY)
        if "solver" in uses and settings.solver == "protocol":
            notes.append(AUGMENTED if LINEAR[settings.protocol].augmented else None)
        too_many = f"is more than the {labelled} labelled images: all of them"
        if "k" in uses and settings.k is not None and settings.k > labelled:
            notes.append(f"k = {settings.k} {too_many} vote")
        if self._requested(probe) > labelled:
            notes.append(f"labels = {settings.labels} {too_many} are used")
        return [note for note in notes if note]

    @cached_property
    def fine_tuning_subset(self) -> LabelledSubset:
        """The images for `semi`: those left out of pre-training if they are enough, else any."""
        experiment = self.experiment
        train = self.train
        share = experiment.probe.labels or experiment.data.leave_out or FEW_LABELS
        wanted = label_count(share, len(train))
        pool = train
        note = None
        if self._seen and self.data.train.labelled:
            unseen = left_out(experiment, self.data)
            if len(unseen) >= wanted:
                pool = train.select(unseen)
            elif len(unseen):
                note = f"{SEEN}: data.leave_out kept only {len(unseen)} of them out"
            else:
                note = f"{SEEN}: set data.leave_out to keep them out"
        if wanted < len(pool):
            index = balanced(pool.labels, wanted, generator(experiment.seed, "labelled"))
            pool = pool.select(index)
        return LabelledSubset(pool, len(pool) / len(train), note)


def _halves(test: Images) -> tuple[Images, Images]:
    """Split test images into two halves with the same classes: to learn from, and to test on."""
    order = torch.randperm(len(test), generator=generator("halves"))
    by_class = order[test.labels.cpu()[order].argsort(stable=True)]
    first = by_class[1::2].sort().values
    second = by_class[::2].sort().values
    return test.select(first), test.select(second)
