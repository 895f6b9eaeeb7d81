"""Look at the images of evaluation with a run's model: maps, nearest neighbours, and the partition.

Of clients' images only their numbers are used; pictures are of test images only.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedssl.core.console import Notify, ignore_message, steps
from fedssl.core.errors import ConfigError, FedsslError
from fedssl.data import Dataset, Images, earth_movers_distance, histogram
from fedssl.data.download import without_downloads
from fedssl.evaluation.evaluate import Evaluation
from fedssl.evaluation.models import Models
from fedssl.evaluation.outcomes import read_outcomes
from fedssl.evaluation.verdict import THIS_RUN
from fedssl.plots.feature_map import MAPPED, MIN_MAPPED, tsne, unit
from fedssl.plots.style import need_matplotlib
from fedssl.runs.picture import features_before_and_after
from fedssl.runs.resume_checks import FLOWER
from fedssl.runs.run import Run

NEIGHBOURS = 6  # of an image
QUERIES = 10  # images whose neighbours are shown
MAX_OWNERS = 24  # clients that have a colour on the map
GRID = 1000  # positions on a map are whole numbers up to this

NO_TEST = "The run has no labelled test images, so there are no maps and no neighbours."
PRIVATE = (
    "The run is differentially private. How many images of each class a client has is private "
    "too, and is not part of this page."
)
ON_NODES = "Images stayed on the nodes of their owners, so their classes are unknown here."
NOT_READ = "The images of the run could not be read where this page was made."


class Partition(NamedTuple):
    """How many images each client has."""

    clients: list[str]
    sizes: list[int]
    counts: Tensor | None  # (clients, classes); None without labels
    classes: tuple[str, ...]

    @property
    def distance(self) -> float | None:
        """The earth mover's distance between clients and all images, by class."""
        if self.counts is None:
            return None
        return earth_movers_distance(self.counts)


class FeatureMap(NamedTuple):
    """Test images before and after training: positions, nearest neighbours and classes."""

    images: Images
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    model: str  # the one whose features these are
    models: int
    positions: tuple[NDArray[np.int64], NDArray[np.int64]] | None  # (n, 2) before and after
    neighbours: tuple[NDArray[np.int64], NDArray[np.int64]]  # (n, NEIGHBOURS)
    correct: NDArray[np.float32] | None  # shares of models that classify an image correctly

    def agreement(self, which: int) -> float:
        """Return the percentage of neighbours that have the class of their image."""
        same = self.labels[self.neighbours[which]] == self.labels[:, None]
        return 100 * float(same.mean())

    def queries(self) -> list[int]:
        """Return the first image of each class, for a few classes."""
        first = [int(np.flatnonzero(self.labels == label)[0]) for label in np.unique(self.labels)]
        return first[:QUERIES]


class ImageFacts(NamedTuple):
    """What a report shows that needs images, as far as they can be read."""

    partition: Partition | None = None
    features: FeatureMap | None = None
    training_images: int | None = None
    test_images: int | None = None
    notes: tuple[str, ...] = ()  # what is missing, and why


def look_at_images(
    folder: Path, data_dir: Path | None, device: str, notify: Notify, dataset: Dataset | None = None
) -> ImageFacts:
    """Return the partition, maps and neighbours of a run; nothing is downloaded for them."""
    run = Run(folder, data_dir, device, dataset)
    try:
        with without_downloads():
            data = run.data(ignore_message)
    except (FedsslError, OSError) as problem:
        notify(f"the report has no maps, neighbours and classes of clients: {problem}")
        return ImageFacts(notes=(NOT_READ,))
    facts = ImageFacts(training_images=len(data.train))
    if data.test is not None:
        facts = facts._replace(test_images=len(data.test))
    facts = _with_partition(facts, run, data, notify)
    return _with_features(facts, run, data, notify)


def _with_partition(facts: ImageFacts, run: Run, data: Dataset, notify: Notify) -> ImageFacts:
    if (run.dir / FLOWER).is_file():
        return facts._replace(training_images=None, notes=(*facts.notes, ON_NODES))
    if run.experiment.privacy.enabled:
        return facts._replace(notes=(*facts.notes, PRIVATE))
    try:
        _, owners = run.partition_data(data)
    except FedsslError as problem:
        notify(f"the report has no partition: {problem}")
        return facts._replace(notes=(*facts.notes, "The partition could not be computed again."))
    owned = {client: index for client, index in owners.items() if len(index)}
    sizes = [len(index) for index in owned.values()]
    counts = None
    if data.train.labelled:
        labels = data.train.labels
        counts = histogram(owned, labels, max(len(data.train.classes), int(labels.max()) + 1))
    partition = Partition(list(owned), sizes, counts, data.train.classes)
    return facts._replace(partition=partition)


def _with_features(facts: ImageFacts, run: Run, data: Dataset, notify: Notify) -> ImageFacts:
    test = data.test
    if test is None or not test.labelled or len(test) < MIN_MAPPED:
        return facts._replace(notes=(*facts.notes, NO_TEST))
    try:
        features = _feature_map(run, data, test, notify)
    except FedsslError as problem:  # no checkpoint, or personal models on nodes
        notify(f"the report has no maps and no neighbours: {problem}")
        missing = "There is no usable model here, so there are no maps and no neighbours."
        return facts._replace(notes=(*facts.notes, missing))
    if features.positions is None:
        missing = 'Maps of features need scikit-learn and matplotlib (the extra "viz").'
        return facts._replace(features=features, notes=(*facts.notes, missing))
    return facts._replace(features=features)


def _feature_map(run: Run, data: Dataset, test: Images, notify: Notify) -> FeatureMap:
    models = run.models()
    if not models:
        raise ConfigError(f"{run.dir} has no model yet")
    mapped = test.select(torch.arange(min(MAPPED, len(test))))
    evaluation = Evaluation(run.experiment, data, run.device, notify=notify)
    with steps("report", 3, notify) as show:
        show(0, "features before and after training")
        features = list(map(unit, features_before_and_after(evaluation, models, mapped)))
        if not np.isfinite(features).all():
            raise ConfigError("the model gives features that are not finite")
        positions = None
        if _can_map(notify):
            show(1, "map before training")
            before = _positions(features[0])
            show(2, "map after training")
            positions = (before, _positions(features[1]))
    return FeatureMap(
        images=mapped,
        labels=mapped.labels.numpy(),
        classes=mapped.classes,
        model=next(iter(models)),
        models=_count(models),
        positions=positions,
        neighbours=(_nearest(features[0]), _nearest(features[1])),
        correct=_outcomes(run, len(test), len(mapped)),
    )


def _count(models: Models) -> int:
    """Return 1 or 2: counting all personal models would build each."""
    return len([name for _, name in zip(range(2), models, strict=False)])


def _can_map(notify: Notify) -> bool:
    try:
        need_matplotlib()
    except ConfigError as problem:
        notify(f"the report has no maps: {problem}")
        return False
    return True


def _positions(features: NDArray[np.floating]) -> NDArray[np.int64]:
    """Return the positions (n, 2) on a map as whole numbers from 0 to GRID."""
    xy = tsne(features)
    middle = (xy.min(0) + xy.max(0)) / 2
    span = max(float(np.ptp(xy, axis=0).max()), 1e-12)
    return np.asarray((GRID * ((xy - middle) / span + 0.5)).round(), dtype=np.int64)


def _nearest(features: NDArray[np.floating]) -> NDArray[np.int64]:
    """Return for each row of unit length the indices of the most similar other rows."""
    similarity = torch.from_numpy(np.ascontiguousarray(features @ features.T))
    similarity.fill_diagonal_(-2.0)
    count = min(NEIGHBOURS, len(features) - 1)
    return similarity.topk(count, dim=1).indices.numpy()


def _outcomes(run: Run, tested: int, mapped: int) -> NDArray[np.float32] | None:
    """Return how often the last probe classifies the mapped images correctly, if it was saved.

    Without labels of training images, probes are tested on some of the test images only.
    """
    outcomes = read_outcomes(run.dir)
    for probe in ("linear", "knn"):
        correct = outcomes.get((THIS_RUN, probe))
        if correct is not None and len(correct) == tested:
            return correct[:mapped].numpy()
    return None


def owner_of_classes(partition: Partition | None) -> list[int] | None:
    """Return for each class the client that has most of its images.

    None if that would show nothing: if classes are spread evenly, or if clients are many.
    """
    if partition is None or partition.counts is None:
        return None
    clients = len(partition.clients)
    totals = partition.counts.sum(0).clamp(min=1)
    shares = (partition.counts / totals).max(0).values
    if not 1 < clients <= MAX_OWNERS or float(shares.mean()) < 1.5 / clients:
        return None
    return _as_list(partition.counts.argmax(0))


def _as_list(values: Tensor) -> list[int]:
    return [int(value) for value in values]


def class_names(classes: Sequence[str], count: int) -> list[str]:
    """Return the names of classes; their numbers where they have none."""
    names = list(classes[:count])
    names += map(str, range(len(names), count))
    return names
