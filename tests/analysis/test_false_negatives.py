"""The share of negatives that are of the query's own class."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch

import fedssl
from fedssl.analysis import analyse
from fedssl.analysis.false_negatives import ratios
from fedssl.data import from_python
from fedssl.errors import ConfigError

Go = Callable[..., fedssl.Run]
Make = Callable[[int, int], tuple[torch.Tensor, torch.Tensor]]


def test_the_papers_examples() -> None:
    """m = 2 classes on each of |C| = 5 clients. Mutually exclusive: 1/m = 1/2 locally, 1/(m·|C|) = 1/10 with remote
    features, 0 with those only. All clients alike: 1/2 throughout (Sect. 4.1)."""
    apart = torch.zeros(5, 10)
    for client in range(5):
        apart[client, 2 * client : 2 * client + 2] = 100
    found = ratios(apart, 64, 64)
    assert {way: each.tolist() for way, each in found.items()} == {
        "local": pytest.approx([0.5] * 5),
        "with remote": pytest.approx([0.1] * 5),
        "remote only": pytest.approx([0.0] * 5),
    }
    alike = torch.full((5, 2), 30)
    assert all(each.tolist() == pytest.approx([0.5] * 5) for each in ratios(alike, 64, 64).values())


def test_against_a_loop_over_queries_and_negatives() -> None:
    """Every negative by itself: a queue that holds each image of its client `times` over, so that the mix is exact."""
    counts, local, remote = torch.tensor([[3, 1, 0], [0, 2, 2], [1, 1, 2]]), 8, 4
    classes = [[y for y in range(3) for _ in range(int(row[y]))] for row in counts]
    found = ratios(counts, local, remote)
    for client in range(3):
        own = classes[client] * (local // 4)
        others = [y for i in range(3) if i != client for y in classes[i] * (remote // 4)]
        for way, negatives in (("local", own), ("with remote", own + others), ("remote only", others)):
            hits = [negative == query for query in classes[client] for negative in negatives]
            assert float(found[way][client]) == pytest.approx(sum(hits) / len(hits))


def test_of_a_run(go: Go) -> None:
    """Three clients with one class of three each: locally every negative is false. With the queue of 16 and 16 from
    each other client a third is; with 16 and 8 it is 16 of 32."""
    changes = {"partition.name": "classes", "partition.per_client": 1, "method.name": "mocov2", "method.queue": 16}
    run = go(**changes)
    found = analyse("false-negatives", [run]).found["runs"]["run"]
    assert (found["local"], found["remote"]) == (16, 16)
    assert found["mean"] == {"local": 1.0, "with remote": pytest.approx(1 / 3), "remote only": 0.0}
    assert analyse("false-negatives", [run], remote=8).found["runs"]["run"]["mean"]["with remote"] == pytest.approx(0.5)
    written = json.loads((run.dir / "analysis" / "false-negatives.json").read_text())
    assert written["settings"] == {"local": 0, "remote": 8}


def test_one_client_has_no_others(go: Go) -> None:
    found = analyse("false-negatives", [go(**{"topology.name": "centralized"})]).found["runs"]["run"]
    assert found["mean"] == {"local": pytest.approx(1 / 3)}


def test_without_labels_nobody_knows(go: Go, images: Make) -> None:
    run = go("run", from_python(images(48, 0)[0], images(24, 1)))
    with pytest.raises(ConfigError, match="no labels"):
        analyse("false-negatives", [run])
