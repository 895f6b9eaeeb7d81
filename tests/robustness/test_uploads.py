"""One client's uploads and reported numbers must not determine the results of the others."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from error_messages import raises

import fedssl
from fedssl.algorithm import ALGORITHMS
from fedssl.algorithms import FedAvg, FedBN
from fedssl.core.errors import ConfigError, RunError
from fedssl.core.state.layout import Entry, Layout
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, model
from fedssl.engine.runtimes.local import LocalRuntime
from fedssl.engine.uploads.records import Reply
from fedssl.training.client import Client

Corrupt = Callable[[dict[str, Any]], Tree]


def _poison(value: float) -> Corrupt:
    def corrupt(upload: dict[str, Any]) -> Tree:
        model(upload, "model").floats[7] = value
        return upload

    return corrupt


def _statistics(name: str, value: float) -> Corrupt:
    """Running statistics that are well-formed and ruin every feature."""

    def corrupt(upload: dict[str, Any]) -> Tree:
        for entry in model(upload, "model").layout.entries:
            if entry.name.endswith(name):
                model(upload, "model").view(entry).fill_(value)
        return upload

    return corrupt


def _relaid(change: Callable[[tuple[Entry, ...]], tuple[Entry, ...]]) -> Corrupt:
    def corrupt(upload: dict[str, Any]) -> Tree:
        return {"model": State.empty(Layout(change(model(upload, "model").layout.entries)))}

    return corrupt


def _half(upload: dict[str, Any]) -> Tree:
    sent = model(upload, "model")
    return {"model": State(sent.layout, sent.floats.half(), sent.counts)}


def _short(upload: dict[str, Any]) -> Tree:
    sent = model(upload, "model")
    return {
        "model": State(sent.layout, sent.floats[:1], sent.counts)
    }  # of shape (1,), which would broadcast


CORRUPTIONS: dict[str, tuple[Corrupt, str]] = {
    "nan": (_poison(math.nan), "model: contains NaN or infinite values"),
    "infinity": (_poison(math.inf), "model: contains NaN or infinite values"),
    "minus infinity": (_poison(-math.inf), "model: contains NaN or infinite values"),
    "negative variance": (_statistics("running_var", -1000.0), "running_var is negative"),
    "huge variance": (_statistics("running_var", 1e30), "its running statistics moved by"),
    "huge mean": (_statistics("running_mean", 1e30), "its running statistics moved by"),
    "huge negative mean": (_statistics("running_mean", -1e30), "its running statistics moved by"),
    "extra key": (lambda upload: upload | {"more": torch.zeros(1)}, 'key "more" is not expected'),
    "missing key": (lambda upload: {}, 'key "model" is missing'),
    "not a model": (lambda upload: {"model": torch.zeros(3)}, "model: is not a model"),
    "missing entry": (_relaid(lambda entries: entries[1:]), "is missing"),
    "extra entry": (
        _relaid(lambda e: (*e, Entry("backbone.more", (1,), "weight"))),
        "backbone.more is not expected",
    ),
    "wrong shape": (
        _relaid(lambda e: (e[0]._replace(shape=(1,)), *e[1:])),
        "has shape (1,), expected",
    ),
    "wrong dtype": (_half, "its float row does not match its layout"),
    "short row": (_short, "its float row does not match its layout"),
}


class OneBadClient(FedAvg):
    """FedAvg in which client 1 corrupts its upload."""

    kind: str
    whom: tuple[str, ...] = ("1",)

    def client_update(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
        upload, memory = super().client_update(client, message)
        return (
            CORRUPTIONS[self.kind][0](dict(upload)) if client.id in self.whom else upload
        ), memory


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS._classes, "one-bad-client", OneBadClient)


@pytest.fixture
def listed(tmp_path: Path) -> Callable[[str], dict[str, Any]]:
    """Return settings for these clients; each always has the same images."""

    def settings(clients: str) -> dict[str, Any]:
        path = tmp_path / f"{clients}.json"
        path.write_text(
            json.dumps({c: list(range(int(c) * 16, int(c) * 16 + 10 + int(c))) for c in clients})
        )
        return {"clients": len(clients), "partition.name": "listed", "partition.path": str(path)}

    return settings


def _run(federation: Any, folder: str, settings: dict[str, Any]) -> fedssl.Run:
    root, common = federation.root, {"rounds": 3, "train.batch": 4}
    toml = federation.toml("byol")
    return fedssl.run(
        toml, root / folder, data_dir=root / "data", quiet=True, set=common | settings
    )


@pytest.mark.rows("U1", "U5")
@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_a_corrupt_upload_is_dropped_and_the_others_mean_is_exact(
    kind: str, federation: Any, listed: Callable[[str], dict[str, Any]]
) -> None:
    """With client 1 dropped in every round, clients 0 and 2 get the result of a run without it."""
    run = _run(
        federation,
        "bad",
        listed("012") | {"algorithm.name": "one-bad-client", "algorithm.kind": kind},
    )
    _run(federation, "without", listed("02"))
    assert federation.hashes("bad") == federation.hashes("without")
    for line in run.rounds:
        dropped = {c["client"]: c["dropped"] for c in line["clients"]}
        assert CORRUPTIONS[kind][1] in dropped["1"]
        assert dropped["0"] is dropped["2"] is None
        memory_advanced = {c["client"]: c.get("memory_advanced") for c in line["clients"]}
        assert memory_advanced == {
            "0": None,
            "1": True,
            "2": None,
        }  # it has trained, and stores its memory
        assert not line["failed"]


@pytest.mark.rows("U6")
@pytest.mark.parametrize("images", [-5, 0, math.nan, 10**9, 1e9, "many", True, 1.5])
def test_a_wrong_number_of_images_is_dropped(
    images: Any,
    federation: Any,
    listed: Callable[[str], dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exchange = LocalRuntime.exchange

    def wrong_count(self: LocalRuntime, *args: Any) -> Iterator[Reply]:
        for reply in exchange(self, *args):
            yield reply._replace(images=images) if reply.client == "1" else reply

    with monkeypatch.context() as patch:
        patch.setattr(LocalRuntime, "exchange", wrong_count)
        run = _run(federation, "wrong_count", listed("012"))
    _run(federation, "without", listed("02"))
    assert federation.hashes("wrong_count") == federation.hashes("without")
    assert {c["dropped"] for line in run.rounds for c in line["clients"]} == {
        None,
        f"claims {images!r} images, not an integer from 1 to 10,000,000",
    }


@pytest.mark.rows("U2")
def test_a_loss_that_is_not_finite_stops_the_client_alone(federation: Any) -> None:
    """A learning rate of 1e9 makes weights infinite in one step and the loss NaN in the next."""
    with raises(RunError):
        federation.here("run", "simclr", "train.lr=1e9", "train.epochs=3")
    for line in federation.rounds("run"):
        assert line["failed"]
        assert line["loss"] is None
        assert {c["dropped"] for c in line["clients"]} == {
            "its loss became infinite or NaN; a lower train.lr may help"
        }
        assert not any("steps" in c or "bytes_up" in c for c in line["clients"])
        assert {c["memory_advanced"] for c in line["clients"]} == {False}


@pytest.mark.rows("U10")
def test_a_merged_model_without_finite_features_is_never_exported(
    federation: Any, listed: Callable[[str], dict[str, Any]]
) -> None:
    """With the bounds off, all three clients send a running mean that overflows in the next
    layer.
    """
    bad = {
        "algorithm.name": "one-bad-client",
        "algorithm.kind": "huge negative mean",
        "algorithm.whom": ("0", "1", "2"),
    }
    off = {"guard.norm_bound": 0, "guard.statistics_bound": 0}
    with raises(RunError):
        _run(federation, "run", listed("012") | bad | off)
    assert all(line["failed"] for line in federation.rounds("run"))
    assert federation.hashes("run") == {}
    kept = fedssl.Run(federation.root / "run").models()["global"]
    assert float(kept.floats.abs().max()) < 100


class BadNorms(FedBN):
    """FedBN whose client 1 uploads running statistics that leave every feature at 0."""

    def client_update(self, client: Client, message: Tree) -> tuple[Tree, Tree]:
        upload, memory = super().client_update(client, message)
        if client.id == "1":
            _statistics("running_mean", 1e30)({"model": upload["norms"]})
        return upload, memory


@pytest.mark.rows("U10")
def test_statistics_that_are_uploaded_but_never_sent_have_a_bound_too(
    federation: Any, listed: Callable[[str], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ALGORITHMS._classes, "bad-norms", BadNorms)
    run = _run(
        federation,
        "run",
        listed("012") | {"algorithm.name": "bad-norms", "algorithm.eval_norm": "mean"},
    )
    for line in run.rounds:
        dropped = {c["client"]: c["dropped"] for c in line["clients"]}
        assert "its running statistics moved by" in dropped["1"]
        assert dropped["0"] is dropped["2"] is None


@pytest.mark.rows("U13")
def test_a_plan_that_cannot_reach_the_minimum_is_rejected_at_the_start(federation: Any) -> None:
    """One of three clients a round. Topologies that merge at no server are exempt."""
    with raises(ConfigError):
        federation.here("run", "simclr", "topology.participation=0.34")
    assert not (federation.root / "run").exists()
    federation.here("run", "simclr", "topology.participation=0.34", "guard.min_uploads=1")
    for topology in ("isolated", "cycle", "centralized"):
        federation.here(topology, "simclr", "clients=2", f"topology={topology}", "rounds=1")


@pytest.mark.rows("U4")
@pytest.mark.parametrize("rounds", [2, 3, 6])
def test_every_upload_invalid(
    rounds: int, federation: Any, listed: Callable[[str], dict[str, Any]]
) -> None:
    """The first model is kept and no backbone is exported as trained, also on a second call."""
    bad = {
        "algorithm.name": "one-bad-client",
        "algorithm.kind": "nan",
        "algorithm.whom": ("0", "1", "2"),
    }
    settings = listed("012") | bad | {"rounds": rounds}
    for turn in (1, 2):
        with raises(RunError):
            _run(federation, "run", settings)
        assert len(federation.rounds("run")) == min(rounds, 3 * turn)
    assert all(line["failed"] for line in federation.rounds("run"))
    assert not (federation.root / "run/results.json").exists()
    assert federation.hashes("run") == {}
    kept = fedssl.Run(federation.root / "run").models()["global"]
    fresh = _run(
        federation,
        "one",
        listed("012") | {"rounds": 1, "train.lr": 1e-30, "train.weight_decay": 0.0},
    )
    # Parameters only: a step of length zero still moves running statistics.
    assert float(kept.distance(fresh.models()["global"])) == pytest.approx(0, abs=1e-6)
    assert np.isfinite(kept.floats.numpy()).all()
