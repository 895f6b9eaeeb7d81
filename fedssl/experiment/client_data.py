"""Read the images of an experiment and deal them to its clients."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedssl.core.console import Notify
from fedssl.core.errors import ConfigError, DataError
from fedssl.core.seeds import generator
from fedssl.data import PARTITIONS, Dataset, HeldOut, from_python, is_by_client
from fedssl.data.partition import check_parts
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.merge_checks import check_neighbourhoods, check_uploads
from fedssl.probes import balanced, label_count
from fedssl.topologies.topology import MEAN, SERVER
from fedssl.training.trainer import MIN_IMAGES

INITIAL_CLIENT = "home"  # the client with which an algorithm makes its first state


def with_given_images(changes: Mapping[str, Any], dataset: Any) -> dict[str, Any]:
    """Return changes of an experiment, by dotted key, for images that are passed from Python.

    None are passed if `dataset` is None. A dict {client: images} defines the clients, unless the
    changes name a partition.
    """
    changed = dict(changes)
    if dataset is None:
        return changed
    changed.setdefault("data.name", "given")
    if is_by_client(dataset) and not {"partition", "partition.name"} & changed.keys():
        changed["partition.name"] = "natural"
        changed["clients"] = len(dataset)
    return changed


def read_data(experiment: Experiment, root: Path, dataset: Any, notify: Notify) -> Dataset:
    """Return the experiment's images; `dataset` are images passed from Python."""
    if dataset is not None:
        data = dataset if isinstance(dataset, Dataset) else from_python(dataset)
        return experiment.data.apply_holdout(data)
    return experiment.data.load(root, notify)


def read_public(experiment: Experiment, data: Dataset, root: Path, notify: Notify) -> Tensor | None:
    """Return the public images (n, C, H, W); None if the algorithm needs none.

    They have the shape of the training images.
    """
    if experiment.algorithm.needs_public:
        return experiment.public.take(
            data.train, root, generator(experiment.seed, "public"), notify
        )
    if experiment.public != HeldOut():
        notify("[public] is ignored: with these settings the algorithm needs no public images")
    return None


def partition_data(
    experiment: Experiment, data: Dataset, notify: Notify
) -> tuple[Dataset, dict[str, Tensor]]:
    """Return the images as clients see them, and the indices that each client holds.

    The result is for training; models are measured on `data`. Public images and images that are
    left out are removed after dealing, so that all others go to the same clients as without them.
    """
    clients = experiment.clients
    parts = experiment.partition.split(data, clients, generator(experiment.seed, "partition"))
    source = f'partition "{PARTITIONS.name_of(type(experiment.partition))}"'
    parts = check_parts(parts, clients, len(data.train), source=source)
    excluded = torch.cat([public_rows(experiment, data), left_out(experiment, data)])
    parts = {client: index[~torch.isin(index, excluded)] for client, index in parts.items()}
    owners = dict(experiment.topology.owners(parts))
    _check_names(experiment, owners)
    empty = []
    present = []
    for client, index in owners.items():
        if len(index):
            present.append(client)
        else:
            empty.append(client)
    if not present:
        raise DataError("no client has any images: check [data] and [partition]")
    if empty:
        notify(f"clients without images do not take part: {', '.join(empty)}")
    check_plan(experiment, present)
    _check_image_counts(experiment, owners)
    return experiment.partition.shift(data, parts), owners


def _check_names(experiment: Experiment, owners: Mapping[str, Tensor]) -> None:
    """Raise ConfigError if a client has a name that is used for something else."""
    reserved = {SERVER, INITIAL_CLIENT}
    if experiment.topology.consensus:
        reserved.add(MEAN)
    taken = reserved & owners.keys()
    if taken:
        raise ConfigError(f'a client has the reserved name "{min(taken)}": rename it')


def check_plan(experiment: Experiment, clients: list[str]) -> None:
    """Reject clients that the topology cannot connect, or too few of them for a server to merge."""
    plan = experiment.topology.plan(clients, 0, experiment.seed)
    if experiment.topology.has_server:
        check_uploads(len(plan.site_of), len(clients), experiment.min_uploads, experiment.mean)
    else:
        check_neighbourhoods(
            experiment.mean, experiment.topology, clients, experiment.rounds, experiment.seed
        )


def _check_image_counts(experiment: Experiment, owners: Mapping[str, Tensor]) -> None:
    """Raise ConfigError if too few clients have the two images that training needs.

    Smaller clients are dropped in every round, so that no round would succeed.
    """
    counts = [len(index) for index in owners.values()]
    able = sum(count >= MIN_IMAGES for count in counts)
    shortage = experiment.mean.shortage(able)
    if able >= experiment.min_uploads and shortage is None:
        return
    problem = (
        f"training needs {MIN_IMAGES} images per client, and {able} of {len(counts)} clients have "
        "them"
    )
    if able and shortage is not None:
        raise ConfigError(f"{problem}; {shortage}: choose another mean or partition")
    if able:
        problem += f", but a server needs {experiment.min_uploads} valid uploads to merge"
    most = sum(counts) // MIN_IMAGES  # clients that could have enough images
    advice = "add images"
    if not experiment.partition.brings_clients and most >= experiment.min_uploads:
        advice = f"set clients to {most} or fewer"
    if able:
        advice += f", or set guard.min_uploads = {able}"
    raise ConfigError(f"{problem}: {advice}")


def public_rows(experiment: Experiment, data: Dataset) -> Tensor:
    """Return the indices (n,) of the training images that are public."""
    if not experiment.algorithm.needs_public:
        return torch.empty(0, dtype=torch.int64)
    return experiment.public.rows(len(data.train), generator(experiment.seed, "public"))


def left_out(experiment: Experiment, data: Dataset) -> Tensor:
    """Return the indices (n,) of the training images that no client gets (`data.leave_out`).

    They are drawn by the run's seed, the same number of each class. Public images are not among
    them, because clients train with those.
    """
    share = experiment.data.leave_out
    train = data.train
    if not share:
        return torch.empty(0, dtype=torch.int64)
    if not train.labelled:
        raise ConfigError(
            "data.leave_out needs labels, to draw the same number of images of each class, but the "
            "training images have none: remove data.leave_out, or use labelled images"
        )
    rows = torch.arange(len(train))
    rows = rows[~torch.isin(rows, public_rows(experiment, data))]
    count = label_count(share, len(train))
    stream = generator(experiment.seed, "left out")
    return rows[balanced(train.labels[rows], count, stream)]
