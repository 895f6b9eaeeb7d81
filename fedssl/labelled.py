"""An experiment's labelled images: those that probes learn from, those they are measured on, and what is to be said
about either."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import torch

from fedssl.assemble import left_out
from fedssl.data import Dataset, Images
from fedssl.errors import ConfigError
from fedssl.experiment import Experiment
from fedssl.lacking import lacking
from fedssl.probes import PROBES, balanced, how_many
from fedssl.seeds import generator

HALVED = (
    "the training images have no labels: probes learn from one half of the labelled test images "
    "and are measured on the other"
)
SEEN = "the model has seen the images it is fine-tuned on in pre-training"
FROZEN = (
    "frozen: the head alone was trained, on features in evaluation mode; the papers fine-tune the whole model, and the "
    "authors' code (EasyFL) trains another head on a backbone in training mode and prints the best test epoch"
)
FEW_LABELS = 0.01  # the share that `semi` has where nothing is said


class Few(NamedTuple):
    """Labelled images to fine-tune with, and what share of all there are they are."""

    images: Images
    share: float
    note: str | None  # what is to be said about them


class LabelledImages:
    """What probes learn from and are measured on. Labels are asked for when a probe needs them, not before."""

    def __init__(self, experiment: Experiment, data: Dataset, seen: bool) -> None:
        """`seen`: whether these are the images that models were pre-trained on, but for those that were left out."""
        self.experiment, self.data, self._seen = experiment, data, seen
        self.note = HALVED if self.possible and not data.train.labelled else None

    @property
    def possible(self) -> bool:
        """Whether there are labelled test images to measure with, and some to learn from."""
        return lacking(self.data) is None

    @property
    def known(self) -> Images:
        """Those that probes learn from."""
        return self._sets[0]

    @property
    def tested(self) -> Images:
        """Those that probes are measured on."""
        return self._sets[1]

    @cached_property
    def _sets(self) -> tuple[Images, Images]:
        if (problem := lacking(self.data, trained_on=self._seen)) is not None:
            raise ConfigError(problem)
        test = self.data.test
        assert test is not None
        if self.data.train.labelled:
            return self.data.train, test
        order = torch.randperm(len(test), generator=generator("halves"))
        order = order[test.labels.cpu()[order].argsort(stable=True)]  # class by class: every other one of each
        return test.select(order[1::2].sort().values), test.select(order[::2].sort().values)

    @cached_property
    def classes(self) -> int:
        said = getattr(self.experiment.method, "classes", 0)  # a classifier's may be more than there are images of
        return max(said, len(self.tested.classes), *(int(images.labels.max()) + 1 for images in self._sets))

    def learned_from(self, probe: str) -> int:
        """How many labelled images a probe learns from."""
        learns = PROBES[probe].learns
        if learns == "all":
            return min(self._asked_for(probe), len(self.known))
        return len(self.few.images) if learns == "few" else 0

    def _asked_for(self, probe: str) -> int:
        """How many it would have if there were as many; none asked for, by `labels = 0`, are all."""
        labels, known = self.experiment.probe.labels, len(self.known)
        return how_many(labels, known) if labels and "labels" in PROBES[probe].uses else known

    def notes(self, probe: str) -> list[str]:
        """What is unusual about measuring with a probe."""
        known, k = len(self.known), self.experiment.probe.k
        notes = [self.note, self.few.note if PROBES[probe].learns == "few" else None]
        if "frozen" in PROBES[probe].uses and self.experiment.probe.frozen:
            notes.append(FROZEN)
        if "k" in PROBES[probe].uses and k > known:
            notes.append(f"k = {k} is more than the {known} labelled images there are: all of them vote")
        if self._asked_for(probe) > known:
            labels = self.experiment.probe.labels
            notes.append(f"labels = {labels} is more than the {known} labelled images there are: all of them are used")
        return [note for note in notes if note]

    @cached_property
    def few(self) -> Few:
        """What `semi` learns from: images that were left out of pre-training as far as they go, else any."""
        known, e = self.known, self.experiment
        wanted = how_many(e.probe.labels or e.data.leave_out or FEW_LABELS, len(known))
        seen = self._seen and self.data.train.labelled
        left = left_out(e, self.data) if seen else torch.empty(0)
        pool = known if len(left) < wanted else known.select(left)
        if wanted < len(pool):
            pool = pool.select(balanced(pool.labels, wanted, generator(e.seed, "labelled")))
        kept = f"only {len(left)} were left out of it" if len(left) else "data.leave_out keeps them from it"
        return Few(pool, len(pool) / len(known), f"{SEEN}: {kept}" if seen and len(left) < wanted else None)
