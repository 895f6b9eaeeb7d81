"""Read the images of an experiment and deal them to its clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedssl.core.console import Say
from fedssl.core.errors import ConfigError, DataError
from fedssl.core.seeds import generator
from fedssl.data import Dataset, HeldOut, from_python
from fedssl.experiment.experiment import Experiment, check_uploads
from fedssl.probes import balanced, how_many
from fedssl.topologies.topology import MEAN, SERVER

HOME = "home"  # the client id with which an algorithm makes its first state


def read_data(experiment: Experiment, root: Path, given: Any, say: Say) -> Dataset:
    """The experiment's images; `given` are images handed over in Python."""
    if given is not None:
        return experiment.data.set_aside(
            given if isinstance(given, Dataset) else from_python(given)
        )
    return experiment.data.load(root, say)


def read_public(experiment: Experiment, data: Dataset, root: Path, say: Say) -> Tensor | None:
    """Images that everybody may see, (n, C, H, W) like the training images of `data`; None if nobody needs them."""
    if experiment.algorithm.needs_public:
        return experiment.public.take(data.train, root, generator(experiment.seed, "public"), say)
    if experiment.public != HeldOut():
        say("[public] is not used: the algorithm as set needs no public images")
    return None


def deal(experiment: Experiment, data: Dataset, say: Say) -> tuple[Dataset, dict[str, Tensor]]:
    """The images as clients see them, and who holds which: client → indices. Clients without any are named once.

    What is handed back is for training; models are measured with the images that were handed in. Images that are
    public or left out are taken from whom they were dealt to, so that the others are dealt as they would be otherwise.
    """
    parts = experiment.partition.split(
        data, experiment.clients, generator(experiment.seed, "partition")
    )
    nobodys = torch.cat([public_rows(experiment, data), left_out(experiment, data)])
    parts = {client: index[~torch.isin(index, nobodys)] for client, index in parts.items()}
    owners = dict(experiment.topology.owners(parts))
    own = {SERVER, HOME, MEAN} if experiment.topology.consensus else {SERVER, HOME}
    if taken := own & owners.keys():
        raise ConfigError(
            f'a client is called "{min(taken)}", as something of fedssl\'s own is; give it another name'
        )
    empty = [client for client, index in owners.items() if not len(index)]
    if len(empty) == len(owners):
        raise DataError("no client has any images")
    if empty:
        say(f"without images, so never asked to train: {', '.join(empty)}")
    check_plan(experiment, [c for c in owners if c not in empty])
    return experiment.partition.shift(data, parts), owners


def check_plan(experiment: Experiment, clients: list[str]) -> None:
    """Reject clients that the topology cannot connect, or too few of them for a server to merge."""
    plan = experiment.topology.plan(clients, 0, experiment.seed)
    check_uploads(len(plan.home), len(clients), experiment.min_uploads)


def public_rows(experiment: Experiment, data: Dataset) -> Tensor:
    """Which training images are public (n,)."""
    if not experiment.algorithm.needs_public:
        return torch.empty(0, dtype=torch.int64)
    return experiment.public.rows(len(data.train), generator(experiment.seed, "public"))


def left_out(experiment: Experiment, data: Dataset) -> Tensor:
    """Which training images `data.leave_out` keeps from every client (n,), in order: as many of each class, drawn by
    the run's seed. Public ones are not among them, for clients train with those."""
    share, train = experiment.data.leave_out, data.train
    if not share:
        return torch.empty(0, dtype=torch.int64)
    if not train.labelled:
        raise ConfigError(
            "data.leave_out draws as many images of each class, and the training images have no labels"
        )
    rows = torch.arange(len(train))
    rows = rows[~torch.isin(rows, public_rows(experiment, data))]
    return rows[
        balanced(
            train.labels[rows], how_many(share, len(train)), generator(experiment.seed, "left out")
        )
    ]
