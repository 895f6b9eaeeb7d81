"""The models of a run by name: those that sites export, and clients' own, built on lookup."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from error_messages import raises
from factories import make_experiment, one_weight

from fedssl.algorithm import Sites
from fedssl.algorithms import FedAvg
from fedssl.core.errors import RunError
from fedssl.core.files.blob_file import BlobFile
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, model, number
from fedssl.engine.checkpoints.client_memory import StoredMemory
from fedssl.evaluation.models import Models, models_of
from fedssl.experiment.experiment import Experiment


def values(models: Models) -> dict[str, float]:
    return {name: state.floats.item() for name, state in models.items()}


class PersonalModels(FedAvg):
    """A client's own model is its site's plus its state; a client with state 0 has none."""

    personalises: ClassVar[bool] = True
    names: tuple[str, ...] = ("global",)  # names under which a site exports its model
    made: ClassVar[list[float]] = []

    def broadcast(self, site: Tree, client_id: str) -> Tree:
        return {**site, "to": client_id}

    def export(self, site: Tree) -> dict[str, State]:
        return {name: model(site, "model") for name in self.names}

    def personal(self, message: Tree, memory: Tree) -> State | None:
        assert message["to"] == memory["client"]
        mine = number(memory, "mine")
        self.made.append(mine)
        return one_weight(model(message, "model").floats.item() + mine) if mine else None


def experiment(topology: str, algorithm: FedAvg) -> Experiment:
    chosen = make_experiment(topology__name=topology)
    return chosen.model_copy(update={"algorithm": algorithm})


def memories(**mine: float) -> dict[str, StoredMemory]:
    return {
        client: StoredMemory(0, {"client": client, "mine": number})
        for client, number in mine.items()
    }


def star(value: float = 10) -> Sites:
    return {"server": {"model": one_weight(value)}}


PEERS: Sites = {
    "a": {"model": one_weight(10)},
    "b": {"model": one_weight(20)},
    "c": {"model": one_weight(60)},
}


def test_without_personal_models_the_sites_export_models() -> None:
    for algorithm in (FedAvg(), PersonalModels()):
        one = models_of(experiment("star", algorithm), star())
        assert (values(one), one.excluded) == ({"global": 10}, frozenset())
        alone = models_of(experiment("isolated", algorithm), PEERS)
        assert (values(alone), alone.excluded) == ({"a": 10, "b": 20, "c": 60}, frozenset())
        peers = models_of(experiment("cycle", algorithm), PEERS)
        assert (values(peers), peers.excluded) == (
            {"a": 10, "b": 20, "c": 60, "mean": 30},
            {"mean"},
        )


def test_memories_matter_only_to_an_algorithm_that_personalises() -> None:
    assert values(models_of(experiment("star", FedAvg()), star(), memories(a=1, b=2))) == {
        "global": 10
    }


def test_personal_models_come_first_and_shared_ones_are_apart() -> None:
    """In the order of names, not in the order in which clients finished."""
    found = models_of(experiment("star", PersonalModels()), star(), memories(b=2, a=1))
    assert list(found) == ["a", "b", "global"]
    assert (values(found), found.excluded, len(found)) == (
        {"a": 11, "b": 12, "global": 10},
        {"global"},
        3,
    )
    assert found["b"].floats.item() == 12
    with pytest.raises(KeyError):
        found["c"]


def test_clients_without_a_model_are_left_out() -> None:
    found = models_of(experiment("star", PersonalModels()), star(), memories(a=1, b=0))
    assert (values(found), found.excluded) == ({"a": 11, "global": 10}, {"global"})
    without = models_of(experiment("star", PersonalModels()), star(), memories(a=0, b=0))
    assert (values(without), without.excluded) == ({"global": 10}, frozenset())


def test_a_site_without_a_whole_model() -> None:
    found = models_of(experiment("star", PersonalModels(names=())), star(), memories(a=1))
    assert (values(found), found.excluded) == ({"a": 11}, frozenset())
    assert not models_of(experiment("star", PersonalModels(names=())), star())
    assert not models_of(experiment("cycle", PersonalModels(names=())), PEERS)


@pytest.mark.parametrize(
    ("topology", "names", "shared"),
    [
        ("star", ("cluster 0", "cluster 1"), {"cluster 0": 10, "cluster 1": 10}),
        ("isolated", ("global",), {"a/global": 10, "b/global": 20, "c/global": 60}),
        (
            "isolated",
            ("x", "y"),
            {"a/x": 10, "a/y": 10, "b/x": 20, "b/y": 20, "c/x": 60, "c/y": 60},
        ),
        ("cycle", ("global",), {"mean": 30}),
        ("cycle", ("x", "y"), {"mean/x": 30, "mean/y": 30}),
    ],
)
def test_a_clients_site_is_its_own_or_the_only_one(
    topology: str, names: tuple[str, ...], shared: dict[str, float]
) -> None:
    sites = star() if topology == "star" else PEERS
    found = models_of(
        experiment(topology, PersonalModels(names=names)), sites, memories(a=1, b=2, c=3)
    )
    own = {"a": 11, "b": 12, "c": 13} if topology == "star" else {"a": 11, "b": 22, "c": 63}
    assert (values(found), found.excluded) == (own | shared, set(shared))


def test_a_client_named_like_a_shared_model() -> None:
    found = models_of(
        experiment("star", PersonalModels()),
        star(),
        {"global": StoredMemory(0, {"client": "global", "mine": 5})},
    )
    assert (values(found), found.excluded) == (
        {"global": 15, "server/global": 10},
        {"server/global"},
    )


def test_a_single_client_named_mean() -> None:
    """Only peers have a mean; a client that trains alone may be called so."""
    sites: Sites = {"mean": {"model": one_weight(10)}, "b": {"model": one_weight(20)}}
    assert models_of(experiment("isolated", FedAvg()), sites).excluded == frozenset()


@pytest.mark.parametrize("topology", ["star", "isolated", "cycle"])
def test_personal_models_are_built_one_at_a_time_and_once(topology: str) -> None:
    """One state is read to find out if clients have models; iterating builds each model once."""
    PersonalModels.made.clear()
    found = models_of(
        experiment(topology, PersonalModels()),
        star() if topology == "star" else PEERS,
        memories(a=1, b=0, c=3),
    )
    assert (PersonalModels.made, bool(found)) == ([1], True)
    assert [name for name, _ in found.items() if name in ("a", "b", "c")] == ["a", "c"]
    assert PersonalModels.made == [1, 0, 3]
    assert (list(found)[:2], len(found)) == (["a", "c"], 2 + len(found.excluded))
    assert ("a" in found, "b" in found) == (True, False)
    assert PersonalModels.made == [1, 0, 3]
    assert found["c"] is found["c"]
    assert found["a"] is not found["c"]
    assert PersonalModels.made == [1, 0, 3, 1, 3]


def test_memories_on_disk(tmp_path: Path) -> None:
    rows, memory = BlobFile(tmp_path / "rows"), memories(a=1, b=2)
    for version in memory.values():
        version.release(rows)
    found = models_of(experiment("star", PersonalModels()), star(), memory)
    assert values(found) == {"a": 11, "b": 12, "global": 10}
    (tmp_path / "rows").write_bytes(b"\0" * 10_000)
    with raises(RunError):
        found["a"]
