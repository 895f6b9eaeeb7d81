"""An algorithm that declares `needs_only_means` merges one mean as it merges the uploads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from factories import first_site, make_client, make_trainer, random_pixels

from fedssl.algorithm import ALGORITHMS, Algorithm, Upload
from fedssl.core.state.mean import Mean
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, model

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ALGORITHMS.names()),
    ("fedavg", {"aggregate": "both"}),
    ("fedavg", {"aggregate": "target", "update": "both"}),
    ("fedavg", {"predictor": "local"}),
    ("fedadam", {"aggregate": "both"}),
    ("fedbn", {"eval_norm": "mean"}),
    ("fedema", {"divergence": "global", "lam": 0.5}),
    ("fedema", {"divergence": "global"}),
]
OTHERS = {"ccl", "fedca", "featarc"}


def make(name: str, settings: dict[str, Any]) -> Algorithm:
    return ALGORITHMS[name](**settings)


@pytest.mark.parametrize(("name", "settings"), VARIANTS)
def test_one_mean_is_as_good_as_the_uploads(name: str, settings: dict[str, Any]) -> None:
    algorithm = make(name, settings)
    if not algorithm.needs_only_means:
        assert name in OTHERS or settings == {"divergence": "global"}
        return
    trainer = make_trainer("byol")
    site = first_site(algorithm, trainer)
    uploads = []
    for number, images in enumerate((16, 8, 24)):
        client = make_client(trainer, random_pixels(images, number), id=str(number))
        tree, _ = algorithm.client_update(client, algorithm.broadcast(site, client.id))
        uploads.append(Upload(client.id, float(images), tree))
    merged = algorithm.merge(site, iter(uploads), Mean)
    mean = Upload("server", 1.0, weighted_mean(uploads))
    of_mean = algorithm.merge(site, iter([mean]), Mean)
    assert merged.keys() == of_mean.keys()
    for key, value in merged.items():
        other = of_mean[key]
        if isinstance(value, State):
            assert isinstance(other, State)
            assert torch.equal(value.floats, other.floats)
            assert torch.equal(value.counts, other.counts)
        elif isinstance(value, torch.Tensor):
            assert isinstance(other, torch.Tensor)
            assert torch.equal(value, other)
        else:
            assert value == other


def weighted_mean(uploads: list[Upload]) -> Tree:
    """Return the mean under each key; algorithms with other values than models have no mean."""
    means = {}
    for key in uploads[0].tree:
        mean = Mean()
        for upload in uploads:
            mean.add(model(upload.tree, key), upload.weight)
        means[key] = mean.result()
    return means
