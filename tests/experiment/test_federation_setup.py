"""Build a federation from an experiment: equal weights, clients with images, models by name."""

from __future__ import annotations

import pytest
import torch
from error_messages import raises
from factories import make_experiment, random_pixels

from fedssl.core.devices.select import resolve_device
from fedssl.core.errors import ConfigError, DataError
from fedssl.data import Dataset, Images
from fedssl.evaluation.models import models_of
from fedssl.experiment import federation_setup, placements
from fedssl.experiment.client_data import partition_data

CPU = torch.device("cpu")


def dataset(n: int = 30, owners: dict[str, list[int]] | None = None) -> Dataset:
    train = Images(random_pixels(n), torch.arange(n) % 3)
    if owners is None:
        return Dataset(train)
    rows = {client: torch.tensor(row, dtype=torch.int64) for client, row in owners.items()}
    return Dataset(train, None, rows)


def test_weights_depend_on_the_seed_only() -> None:
    """They do not depend on torch's global generator, and do not change it."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = federation_setup.build_method(make_experiment(), (3, 8, 8), CPU).state.floats
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(
        federation_setup.build_method(make_experiment(), (3, 8, 8), CPU).state.floats, first
    )
    assert not torch.equal(
        federation_setup.build_method(make_experiment({"seed": 1}), (3, 8, 8), CPU).state.floats,
        first,
    )


def test_every_trainer_holds_the_same_weights() -> None:
    trainers = federation_setup.build_trainers(
        make_experiment({"train.workers": 3}), (3, 8, 8), CPU, clients=9
    )
    assert len(trainers) == 3
    assert len({trainer.method.state.floats.data_ptr() for trainer in trainers}) == 3
    assert all(
        torch.equal(t.method.state.floats, trainers[0].method.state.floats) for t in trainers
    )


def test_no_more_workers_than_clients() -> None:
    assert (
        len(
            federation_setup.build_trainers(
                make_experiment({"train.workers": 5}), (3, 8, 8), CPU, clients=2
            )
        )
        == 2
    )
    assert (
        1 <= len(federation_setup.build_trainers(make_experiment(), (3, 8, 8), CPU, clients=2)) <= 2
    )


def test_clients_without_images_are_named_once() -> None:
    messages: list[str] = []
    data = dataset(owners={"a": [0, 1], "b": [], "c": [5, 6, 7]})
    _, owners = partition_data(
        make_experiment({"partition.name": "natural"}), data, messages.append
    )
    assert {c: index.tolist() for c, index in owners.items()} == {
        "a": [0, 1],
        "b": [],
        "c": [5, 6, 7],
    }
    assert messages == ["clients without images do not take part: b"]
    empty = dataset(owners={"a": [], "b": [], "c": []})
    with raises(DataError):
        partition_data(make_experiment({"partition.name": "natural"}), empty, messages.append)


def test_the_partition_depends_on_the_seed_only() -> None:
    def dealt(seed: int) -> list[list[int]]:
        _, owners = partition_data(make_experiment({"seed": seed}), dataset(), print)
        return [i.tolist() for i in owners.values()]

    assert dealt(0) == dealt(0)
    assert dealt(0) != dealt(1)
    assert sorted(i for part in dealt(0) for i in part) == list(range(30))


def test_shards_hold_a_clients_own_images_and_no_labels() -> None:
    def labels() -> torch.Tensor:
        asked.append(1)
        return torch.arange(30) % 3

    asked: list[int] = []
    data = dataset()
    lazy = Dataset(Images(data.train.pixels, labels))
    owners = {"a": torch.tensor([4, 9]), "b": torch.tensor([0])}
    shards = federation_setup.shards(lazy, owners, [CPU])
    for client, shard in shards.items():
        assert torch.equal(shard.on(CPU).tensor(), data.train.pixels[owners[client]])
        assert shard.on(CPU).pool is lazy.train.pixels  # held once for all clients
    assert asked == []
    assert shards["a"].labels is not None
    assert shards["a"].labels().tolist() == [1, 0]


def test_sites_and_the_names_of_their_models() -> None:
    trainer = federation_setup.build_trainers(make_experiment(), (3, 8, 8), CPU, 1)[0]
    star = federation_setup.first_sites(make_experiment(), trainer, ["a", "b"])
    assert list(models_of(make_experiment(), star)) == ["global"]
    alone = make_experiment({"topology.name": "isolated"})
    sites = federation_setup.first_sites(alone, trainer, ["a", "b"])
    assert list(models_of(alone, sites)) == ["a", "b"]
    assert torch.equal(models_of(alone, sites)["a"].floats, models_of(alone, sites)["b"].floats)


def test_normalisation_fits_the_images() -> None:
    assert federation_setup.normalisation(make_experiment(), 3) is None
    normalised = make_experiment({"data.mean": [0.5], "data.std": [0.25]})
    assert federation_setup.normalisation(normalised, 1) == ((0.5,), (0.25,))
    with raises(ConfigError):
        federation_setup.normalisation(normalised, 3)


@pytest.mark.parametrize("name", ["gpu", "cuda:99", "cpu:x", ""])
def test_missing_devices(name: str) -> None:
    with pytest.raises(ConfigError, match=f'device "{name}"'):
        resolve_device(name)


def test_available_devices() -> None:
    assert resolve_device("cpu") == CPU
    assert resolve_device("auto").type in ("cpu", "cuda")


@pytest.mark.parametrize(
    ("rooms", "workers", "clients", "expected"),
    [
        ((1, 5), 0, 9, [0, 1, 1, 1, 1, 1]),
        ((2, 2), 0, 3, [0, 1, 0]),
        ((1, 1), 3, 9, [0, 1, 0]),
        ((1, 5), 0, 1, [0]),
    ],
)
def test_trainers_use_the_devices_with_free_memory(
    rooms: tuple[int, int],
    workers: int,
    clients: int,
    expected: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    devices = [torch.device("cuda", i) for i in range(2)]
    monkeypatch.setattr(federation_setup, "training_devices", lambda device: devices)
    monkeypatch.setattr(placements, "_capacity", lambda e, image, device: rooms[device.index])
    monkeypatch.setattr(federation_setup, "build_method", lambda e, image, device: device.index)
    monkeypatch.setattr(federation_setup, "Trainer", lambda method, settings: method)
    made = federation_setup.build_trainers(
        make_experiment({"train.workers": workers}), (3, 8, 8), torch.device("cuda"), clients
    )
    assert made == expected
