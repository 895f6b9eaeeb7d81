"""Uploads as vectors: models with running statistics and counters, metrics, and their means."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from error_messages import raises
from hypothesis import given
from hypothesis import strategies as st

from fedssl.algorithm import TensorSpec
from fedssl.core.errors import ClientError, ConfigError
from fedssl.core.state.layout import Entry, Layout
from fedssl.core.state.mean import Mean
from fedssl.core.state.state import State
from fedssl.flower.secure_aggregation.fixed_point import FLOATS
from fedssl.flower.secure_aggregation.vector import VectorLayout, share_word
from fedssl.training.trainer import Metrics

MODEL = Layout.of(
    [
        Entry("backbone.weight", (7, 3), "weight"),
        Entry("backbone.norm.weight", (4,), "norm"),
        Entry("backbone.norm.running_var", (4,), "statistic"),
        Entry("backbone.norm.num_batches_tracked", (), "counter"),
    ]
)
NORMS = Layout.of([Entry("projector.norm.weight", (5,), "norm")])
LAYOUT = VectorLayout({"model": MODEL, "norms": NORMS})
METRICS = Metrics(2.0, 3, 40, 1.0, 0.5, 10.0)


def _state(layout: Layout, random: torch.Generator, scale: float, count: int) -> State:
    floats = scale * torch.randn(layout.floats, generator=random)
    return State(layout, floats, torch.full((layout.counts,), count))


def _uploads(clients: int, seed: int, count: int = 12) -> list[dict[str, State]]:
    random = torch.Generator().manual_seed(seed)
    uploads = []
    for i in range(clients):
        model = _state(MODEL, random, 10.0**i, count)
        uploads.append({"model": model, "norms": _state(NORMS, random, 1.0, 0)})
    return uploads


def test_the_length_of_a_vector() -> None:
    """A word for the share, 29 + 5 floats, one counter, and two words for each of five metrics."""
    assert LAYOUT.words == 1 + 34 + 1 + 10


@given(st.integers(0, 1000), st.lists(st.integers(1, 500), min_size=3, max_size=6))
def test_the_sum_decodes_to_the_mean(seed: int, images: list[int]) -> None:
    """Within n/2 steps for n clients, and half a unit of float32 for the result and its check."""
    uploads = _uploads(len(images), seed)
    total = np.zeros(LAYOUT.words, np.uint64)
    expected = Mean()
    for upload, count in zip(uploads, images, strict=True):
        total += LAYOUT.encode(upload, METRICS, count / sum(images))
        expected.add(upload["model"], count)
    models, metrics = LAYOUT.decode(total, 1.0)
    mean = expected.result()
    tolerance = len(images) / 2 * FLOATS.step + mean.floats.abs().double() * 2**-23
    difference = (models["model"].floats.double() - mean.floats.double()).abs()
    assert bool((difference <= tolerance).all())
    assert models["model"].counts.tolist() == [12]
    assert models["model"].layout == MODEL
    assert models["norms"].layout == NORMS
    assert metrics.loss == pytest.approx(2.0)
    assert (metrics.alignment, metrics.uniformity) == (None, None)


def test_metrics_are_means_over_the_clients_that_have_them() -> None:
    """Loss: 0.25·1 + 0.75·3 = 2.5. Only the second client has an alignment: it stays 0.8."""
    one = METRICS._replace(loss=1.0)
    other = METRICS._replace(loss=3.0, alignment=0.8)
    [upload] = _uploads(1, 0)
    total = LAYOUT.encode(upload, one, 0.25) + LAYOUT.encode(upload, other, 0.75)
    _, metrics = LAYOUT.decode(total, 1.0)
    assert metrics.loss == pytest.approx(2.5, abs=1e-11)
    assert metrics.alignment == pytest.approx(0.8, abs=1e-11)
    assert metrics.uniformity is None


def test_counters_have_the_rounded_mean() -> None:
    """(10·1 + 20·2) / 3 = 16.67: 17. Without secure aggregation they have the maximum, 20."""
    total = np.zeros(LAYOUT.words, np.uint64)
    for count, share in ((10, 1 / 3), (20, 2 / 3)):
        [upload] = _uploads(1, 0, count)
        total += LAYOUT.encode(upload, METRICS, share)
    assert LAYOUT.decode(total, 1.0)[0]["model"].counts.tolist() == [17]


def test_the_first_word_is_the_share() -> None:
    [upload] = _uploads(1, 0)
    assert LAYOUT.encode(upload, METRICS, 0.25)[0] == share_word(0.25) == 2**38


def test_a_value_out_of_range_is_not_sent() -> None:
    [upload] = _uploads(1, 0)
    upload["model"].floats[3] = 5e6
    with raises(ClientError):
        LAYOUT.encode(upload, METRICS, 0.25)


def test_uploads_with_other_values_than_models_are_rejected() -> None:
    with raises(ConfigError):
        VectorLayout.of({"model": MODEL, "features": TensorSpec((None, 4), torch.float32)})
