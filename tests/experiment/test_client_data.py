"""Clients that are too small do not end a run, unless the others are too few for a merge."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from error_messages import raises
from factories import make_experiment, random_pixels

from fedssl.core.console import ignore_message
from fedssl.core.errors import ConfigError, DataError
from fedssl.data import PARTITIONS, Dataset, Images
from fedssl.data.partition import Partition
from fedssl.experiment.client_data import partition_data


def sizes(counts: tuple[int, ...], **changes: Any) -> list[int]:
    """Return the number of images of each client, if clients own these numbers of images."""
    rows = torch.arange(sum(counts)).split(counts)
    owners = {f"client {number}": index for number, index in enumerate(rows)}
    data = Dataset(Images(random_pixels(sum(counts))), None, owners)
    experiment = make_experiment({"partition": "natural", "clients": 0}, **changes)
    _, parts = partition_data(experiment, data, ignore_message)
    return [len(index) for index in parts.values()]


def test_some_clients_may_be_too_small() -> None:
    assert sizes((2, 1, 2)) == [2, 1, 2]


@pytest.mark.parametrize("counts", [(1, 1), (2, 1, 1)])
def test_a_server_needs_two_clients_with_two_images(counts: tuple[int, ...]) -> None:
    with raises(ConfigError):
        sizes(counts)


@pytest.mark.parametrize("changes", [{"guard__min_uploads": 1}, {"topology__name": "isolated"}])
def test_one_client_is_enough_where_nothing_is_averaged(changes: dict[str, Any]) -> None:
    assert sizes((2, 1, 1), **changes) == [2, 1, 1]
    with raises(ConfigError):
        sizes((1, 1), **changes)


def test_centralized_training_pools_all_images() -> None:
    assert sizes((1, 1), topology__name="centralized") == [2]


@pytest.mark.parametrize(("clients", "smallest"), [(4, 1), (3, 2)])
def test_simulated_clients(clients: int, smallest: int) -> None:
    """Of 7 images, at least three clients have two, which is enough; one image each is too few."""
    data = Dataset(Images(random_pixels(7)))
    _, parts = partition_data(make_experiment(clients=clients), data, ignore_message)
    assert min(len(index) for index in parts.values()) == smallest
    with raises(ConfigError):
        few = Dataset(Images(random_pixels(clients)))
        partition_data(make_experiment(clients=clients), few, ignore_message)


def test_a_partition_of_a_user_gives_no_image_to_two_clients() -> None:
    class Twice(Partition):
        brings_clients = True

        def split(
            self, data: Dataset, clients: int, generator: torch.Generator
        ) -> dict[str, torch.Tensor]:
            return {"a": torch.arange(4), "b": torch.arange(3, 7)}

    PARTITIONS.register("test-twice")(Twice)
    try:
        data = Dataset(Images(random_pixels(7)))
        with raises(DataError):
            partition_data(
                make_experiment({"partition": "test-twice", "clients": 0}), data, ignore_message
            )
    finally:
        del PARTITIONS._classes["test-twice"]
