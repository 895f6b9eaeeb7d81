"""An upload and its metrics as one vector of words, and the means in a sum of such vectors.

The first word is the client's share of the weight. The server knows the sum of the shares, so that
a sum in which a mask is left is detected: its first word is random.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedssl.algorithm import Spec
from fedssl.core.errors import ConfigError
from fedssl.core.state.layout import Layout
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, model
from fedssl.flower.secure_aggregation.fixed_point import COUNTERS, FLOATS, FixedPoint
from fedssl.flower.secure_aggregation.masks import Words
from fedssl.training.trainer import Metrics

# Metrics that are in the sum. A value that a client does not have counts 0, and the word after it
# has the share of the clients that do.
METRICS = ("loss", "embedding_std", "effective_rank", "alignment", "uniformity")


class MeanMetrics(NamedTuple):
    """Weighted means of the metrics over clients; None where no client has a value."""

    loss: float
    embedding_std: float
    effective_rank: float
    alignment: float | None
    uniformity: float | None


class Section(NamedTuple):
    """A range of words with one conversion."""

    start: int
    length: int
    numbers: FixedPoint


@dataclass(frozen=True)
class VectorLayout:
    """The order of an upload in a vector: its models by key, then the metrics."""

    models: Mapping[str, Layout]

    @classmethod
    def of(cls, schema: Mapping[str, Spec]) -> VectorLayout:
        """Return the layout of uploads; raises ConfigError if they are not models only."""
        models = {}
        for key in sorted(schema):
            spec = schema[key]
            if not isinstance(spec, Layout):
                raise ConfigError(
                    f'uploads of this algorithm contain "{key}", which is not a model: a secure '
                    "sum has models only. Turn secure-aggregation off or choose another algorithm"
                )
            models[key] = spec
        return cls(models)

    @cached_property
    def words(self) -> int:
        """The length of a vector."""
        size = 1 + 2 * len(METRICS)
        for layout in self.models.values():
            size += layout.floats + layout.counts
        return size

    def encode(self, upload: Tree, metrics: Metrics, share: float) -> Words:
        """Return an upload as words; raises ClientError if a value is outside the range."""
        words = np.empty(self.words, np.uint64)
        words[0] = share_word(share)
        for section, row in self._rows(upload):
            target = words[section.start : section.start + section.length]
            section.numbers.encode(row, share, target)
        numbers = np.zeros(2 * len(METRICS))
        for i, name in enumerate(METRICS):
            value = getattr(metrics, name)
            if value is not None:
                numbers[2 * i] = value
                numbers[2 * i + 1] = 1.0
        FLOATS.encode(numbers, share, words[-len(numbers) :])
        return words

    def decode(self, total: Words, share: float) -> tuple[dict[str, State], MeanMetrics]:
        """Return the mean models and metrics of clients with this share in total."""
        models = {}
        position = 1
        for key, layout in self.models.items():
            floats = total[position : position + layout.floats]
            position += layout.floats
            counts = total[position : position + layout.counts]
            position += layout.counts
            float_row = torch.from_numpy(FLOATS.decode(floats, share).astype(np.float32))
            count_row = np.rint(COUNTERS.decode(counts, share)).astype(np.int64)
            models[key] = State(layout, float_row, torch.from_numpy(count_row))
        return models, _mean_metrics(total[position:], share)

    def _rows(self, upload: Tree) -> Iterator[tuple[Section, NDArray[np.generic]]]:
        """Yield the rows of an upload's models with their places."""
        position = 1
        for key in self.models:
            state = model(upload, key)
            rows = ((state.floats, FLOATS), (state.counts, COUNTERS))
            for row, numbers in rows:
                values = row.detach().cpu().numpy()
                yield Section(position, len(values), numbers), values
                position += len(values)


def upload_digest(upload: Tree) -> str:
    """Return a hash of an upload's models."""
    digest = hashlib.sha256()
    for key in sorted(upload):
        state = model(upload, key)
        digest.update(key.encode())
        for row in (state.floats, state.counts):
            digest.update(row.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()


def share_word(share: float) -> np.uint64:
    """Return the word for a client's share of the weight."""
    word = np.empty(1, np.uint64)
    FLOATS.encode(np.ones(1), share, word)
    return np.uint64(word[0])


def _mean_metrics(words: Words, share: float) -> MeanMetrics:
    numbers = FLOATS.decode(words, share)
    means: list[float | None] = []
    for i in range(len(METRICS)):
        present = float(numbers[2 * i + 1])
        mean = None
        if present > 0:
            mean = float(numbers[2 * i]) / present
        means.append(mean)
    loss, embedding_std, effective_rank, alignment, uniformity = means
    return MeanMetrics(
        loss or 0.0, embedding_std or 0.0, effective_rank or 0.0, alignment, uniformity
    )
