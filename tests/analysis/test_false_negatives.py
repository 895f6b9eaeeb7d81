"""The share of negatives that have the class of their query."""

from __future__ import annotations

import json

import pytest
import torch
from error_messages import raises
from tiny_runs import Go, MakeImages

from fedssl.analysis import analyse
from fedssl.analysis.false_negatives import ratios
from fedssl.core.errors import ConfigError
from fedssl.data import from_python


def test_the_papers_examples() -> None:
    """m = 2 classes on each of |C| = 5 clients (Sect. 4.1).

    Disjoint classes: 1/m = 1/2 locally, 1/(m·|C|) = 1/10 with remote features, 0 with those only.
    Equal classes on all clients: 1/2 throughout.
    """
    disjoint = torch.zeros(5, 10)
    for client in range(5):
        disjoint[client, 2 * client : 2 * client + 2] = 100
    by_choice = ratios(disjoint, 64, 64)
    assert list(by_choice) == ["local", "with remote", "remote only"]
    assert by_choice["local"].tolist() == pytest.approx([0.5] * 5)
    assert by_choice["with remote"].tolist() == pytest.approx([0.1] * 5)
    assert by_choice["remote only"].tolist() == pytest.approx([0.0] * 5)
    equal = torch.full((5, 2), 30)
    for ratio in ratios(equal, 64, 64).values():
        assert ratio.tolist() == pytest.approx([0.5] * 5)


def test_against_a_loop_over_queries_and_negatives() -> None:
    """A queue holds each image of its client equally often, so that the proportions are exact."""
    counts = torch.tensor([[3, 1, 0], [0, 2, 2], [1, 1, 2]])
    local = 8
    remote = 4
    classes = [torch.arange(3).repeat_interleave(row).tolist() for row in counts]
    by_choice = ratios(counts, local, remote)
    for client in range(3):
        own = classes[client] * (local // 4)
        others = []
        for other in range(3):
            if other != client:
                others += classes[other] * (remote // 4)
        negatives = {"local": own, "with remote": own + others, "remote only": others}
        for choice, queue in negatives.items():
            hits = [negative == query for query in classes[client] for negative in queue]
            assert float(by_choice[choice][client]) == pytest.approx(sum(hits) / len(hits))


def test_of_a_run(go: Go) -> None:
    """Three clients have one class of three each: locally every negative is false.

    With a queue of 16 keys and 16 features from each of the two other clients, a third of the
    negatives is false; with 8 features from each, 16 of 32 are.
    """
    changes = {
        "partition.name": "classes",
        "partition.per_client": 1,
        "method.name": "mocov2",
        "method.queue": 16,
    }
    run = go(**changes)
    results = analyse("false-negatives", [run]).results["runs"]["run"]
    assert (results["local"], results["remote"]) == (16, 16)
    assert results["mean"] == {
        "local": 1.0,
        "with remote": pytest.approx(1 / 3),
        "remote only": 0.0,
    }
    fewer = analyse("false-negatives", [run], remote=8).results["runs"]["run"]
    assert fewer["mean"]["with remote"] == pytest.approx(0.5)
    written = json.loads((run.dir / "analysis" / "false-negatives.json").read_text())
    assert written["settings"] == {"local": 0, "remote": 8}


def test_one_client_has_no_others(go: Go) -> None:
    run = go(**{"topology.name": "centralized"})
    results = analyse("false-negatives", [run]).results["runs"]["run"]
    assert results["mean"] == {"local": pytest.approx(1 / 3)}


def test_training_images_without_labels_are_refused(go: Go, images: MakeImages) -> None:
    run = go("run", from_python(images(48, 0)[0], images(24, 1)))
    with raises(ConfigError):
        analyse("false-negatives", [run])
