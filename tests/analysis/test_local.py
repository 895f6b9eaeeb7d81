"""Local models of clients, trained once more from the newest checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import Go

import fedssl
from fedssl.analysis import analyse
from fedssl.analysis.local import local_models
from fedssl.core.console import Notify, ignore_message
from fedssl.core.state.state import State
from fedssl.core.state.tree import model
from fedssl.data import Dataset
from fedssl.engine.checkpoints.store import Store
from fedssl.engine.runtimes import local as runtime
from fedssl.engine.runtimes.client_round import ClientRound, run_client


def _read_files(run: fedssl.Run) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.dir.rglob("*") if path.is_file()}


@pytest.mark.parametrize("algorithm", ["fedavg", "fedema", "ccl", "fedca"])
def test_local_models_are_those_of_the_next_round(go: Go, algorithm: str) -> None:
    """Their distances from the model sent are the divergences that the resumed run logs.

    The files in the run directory do not change.
    """
    changes: dict[str, Any] = {"algorithm.name": algorithm}
    if algorithm == "ccl":
        changes |= {"method.name": "mocov2", "method.queue": 16, "algorithm.neighbours": 3}
    elif algorithm == "fedca":
        changes |= {"method.name": "simclr"}
    run = go(**changes)
    files = _read_files(run)
    models = local_models(run, fedssl.Run.data, ignore_message)
    assert _read_files(run) == files
    snapshot = Store(run.dir).load(ignore_message)
    assert snapshot is not None
    sent = [value for value in snapshot.sites["server"].values() if isinstance(value, State)]
    clients = go(**changes, rounds=3).rounds[2]["clients"]
    assert list(models) == [client["client"] for client in clients] == ["0", "1", "2"]
    for client in clients:
        state = models[client["client"]]
        distances = [float(state.restricted(part.layout).distance(part)) for part in sent]
        assert math.hypot(*distances) == pytest.approx(client["divergence"], rel=1e-4)


@pytest.fixture
def uploads(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[int, str], State]:
    """Return a dictionary that collects the models that clients upload, by round and client."""
    sent: dict[tuple[int, str], State] = {}

    def recorded(work: Any, part: ClientRound, *rest: Any) -> Any:
        reply = run_client(work, part, *rest)
        if reply.upload is not None:
            sent[part.round, part.client] = model(reply.upload, "model").clone()
        return reply

    monkeypatch.setattr(runtime, "run_client", recorded)
    return sent


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Set two threads for the caller; clients of runs have one."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("algorithm", ["fedavg", "fedbn", "perssfl", "featarc"])
def test_local_models_are_the_next_rounds_uploads(
    go: Go, algorithm: str, uploads: dict[tuple[int, str], State]
) -> None:
    """Bit by bit, also if a client trains a personal model too, and for any number of threads."""
    changes = {"algorithm.name": algorithm}
    run = go(rounds=1, **changes)
    torch.set_num_threads(2)
    models = local_models(run, fedssl.Run.data, ignore_message)
    assert torch.get_num_threads() == 2
    go(rounds=2, **changes)
    assert list(models) == ["0", "1", "2"]
    for client, state in models.items():
        sent = uploads[1, client]
        assert torch.equal(state.restricted(sent.layout).floats, sent.floats)
        assert state.floats.isfinite().all()
        assert {"backbone", "projector"} <= {*state.layout.parts}


@pytest.mark.parametrize("kind", ["angles", "map"])
def test_images_are_read_once(kind: str, go: Go, monkeypatch: pytest.MonkeyPatch) -> None:
    run = go()
    read = fedssl.Run.data
    reads: list[fedssl.Run] = []

    def recorded(self: fedssl.Run, notify: Notify) -> Dataset:
        reads.append(self)
        return read(self, notify)

    monkeypatch.setattr(fedssl.Run, "data", recorded)
    analyse(kind, run, local=True, notify=ignore_message)
    assert reads == [run]


def test_norm_layers_that_stay_are_those_that_were_trained(go: Go) -> None:
    """FedBN does not upload them: they are in the client's memory after the next round."""
    changes = {"algorithm.name": "fedbn"}
    models = local_models(go(rounds=1, **changes), fedssl.Run.data, ignore_message)
    later = Store(go(rounds=2, **changes).dir).load(ignore_message)
    assert later is not None
    for client, state in models.items():
        norms = model(later.memory[client].tree, "norms")
        assert torch.equal(state.restricted(norms.layout).floats, norms.floats)


def test_a_client_that_cannot_train_has_no_local_model(go: Go, labelled: Dataset) -> None:
    """One image is not a batch: only the other clients have models."""
    owners = {"a": torch.arange(24), "b": torch.arange(24, 47), "c": torch.tensor([47])}
    run = go("run", labelled._replace(owners=owners), clients=0, **{"partition.name": "natural"})
    messages: list[str] = []
    assert list(local_models(run, fedssl.Run.data, messages.append)) == ["a", "b"]
    assert [line for line in messages if line.startswith("client c has no local model: ")]


def test_the_mean_of_local_models_is_the_next_global_model(go: Go) -> None:
    """FedAvg: three clients with 16 images each, so the plain mean."""
    models = local_models(go("run"), fedssl.Run.data, ignore_message)
    merged = go("longer", rounds=3).models()["global"]
    mean = torch.stack([state.restricted(merged.layout).floats for state in models.values()]).mean(
        0
    )
    torch.testing.assert_close(mean, merged.floats, rtol=1e-4, atol=1e-6)


def test_local_models_can_be_compared(go: Go) -> None:
    run = go()
    results = analyse("weights", [run], notify=ignore_message, local=True).results
    assert results["models"] == ["0", "1", "2"]
    near = analyse("weights", [run], notify=ignore_message, local=True, lr=1e-6).results
    assert 0 < 100 * near["pairs"][0]["total"] < results["pairs"][0]["total"]
