"""Local models of clients: the result of one more local training from the newest checkpoint.

The papers compare local models within a round (FedCA, Figure 4; Dec-SSL, B.3). A run does not keep
them: with a server they are uploads, discarded once they are averaged. They are therefore trained
again from the newest checkpoint. Nothing is merged or written to the run directory, so the run can
be resumed as if it had not been analysed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from fedssl import federation_setup
from fedssl.core.console import Notify, meter
from fedssl.core.devices.precision import numerics, threads
from fedssl.core.devices.select import training_devices
from fedssl.core.errors import ConfigError
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, model
from fedssl.data import Dataset
from fedssl.engine.checkpoints.store import Snapshot, Store
from fedssl.engine.runtimes.client_round import (
    ClientRound,
    RoundPosition,
    RunContext,
    Shard,
    run_client,
)
from fedssl.engine.uploads.records import Reply
from fedssl.experiment.experiment import Experiment
from fedssl.method import Method
from fedssl.runs.run import Run
from fedssl.training.trainer import Trainer, resolve_precision

ReadData = Callable[[Run], Dataset]

NETWORKS = ("model", "target")  # the networks in an upload; other entries are about them


def local_models(
    run: Run, read: ReadData, notify: Notify, lr: float | None = None
) -> dict[str, State]:
    """Return each client's model by its id, on the CPU, after one more local training.

    Clients start from what the newest checkpoint would send them. For an unfinished run this is
    exactly how its next round begins. After the last round clients train with its learning rate: if
    that is near 0, their models hardly change, as in that round; `lr` sets another one. A client
    that cannot train, such as one with a single image, has no model. `read` returns the images.
    """
    snapshot = _load_checkpoint(run, notify)
    experiment = run.experiment
    device = training_devices(run.device)[0]
    data = read(run)
    public_images = _public_images(run, data, device, notify=notify)
    seen, owners = run.partition_data(data, notify)
    owners = clients_with_images(owners)
    trainer = federation_setup.build_trainers(experiment, data.train.image_shape, device, 1)[0]
    clients = _Clients(
        snapshot,
        _context(experiment, snapshot.rounds, lr, public_images),
        trainer,
        federation_setup.shards(seen, owners, [device]),
        device,
    )
    site_of = experiment.topology.plan(list(owners), snapshot.rounds, experiment.seed).site_of
    models = {}
    with (
        meter("training clients", len(site_of), notify) as advance,
        _numerics_of(experiment, device),
    ):
        for client, site in site_of.items():
            reply = clients.train(client, site)
            if reply.upload is None:
                notify(f"client {client} has no local model: {reply.error}")
            else:
                models[client] = _complete_model(reply.upload, trainer.method)
            advance(1)
    return models


@contextmanager
def _numerics_of(experiment: Experiment, device: torch.device) -> Iterator[None]:
    """Compute with the precision and the number of threads of an experiment."""
    train = experiment.train
    exact = resolve_precision(train.precision, device) == "fp32"
    with numerics(device, train.deterministic, exact), threads(train.threads):
        yield


def clients_with_images(owners: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the indices of each client's images, without clients that have no images."""
    return {client: index for client, index in owners.items() if len(index)}


def _load_checkpoint(run: Run, notify: Notify) -> Snapshot:
    snapshot = Store(run.dir).load(notify, check_rows=False)
    if snapshot is None:
        raise ConfigError(f"{run.dir} has no checkpoint yet: wait for its first round")
    return snapshot


class _Clients(NamedTuple):
    """The clients of a checkpoint, trained one at a time on one device."""

    snapshot: Snapshot
    context: RunContext
    trainer: Trainer
    shards: Mapping[str, Shard]
    device: torch.device

    def train(self, client: str, site: str) -> Reply:
        """Train one client from what its site in the checkpoint would send it."""
        part = ClientRound(
            client=client,
            round=self.snapshot.rounds,
            shard=self.shards[client],
            message=self.context.algorithm.broadcast(self.snapshot.sites[site], client),
            load_memory=partial(_memory, self.snapshot, client),
            store_memory=_discard,
        )
        return run_client(self.context, part, self.trainer, self.device)


def _public_images(
    run: Run, data: Dataset, device: torch.device, *, notify: Notify
) -> Mapping[torch.device, Tensor]:
    public = run.public(data, notify)
    if public is None:
        return {}
    return {device: public.to(device)}


def _context(
    experiment: Experiment,
    rounds: int,
    lr: float | None,
    public_images: Mapping[torch.device, Tensor],
) -> RunContext:
    """Return the context of the round after `rounds`, or of the last round again."""
    last = min(rounds, experiment.rounds - 1)
    if lr is None:
        lr = experiment.train.lr_at(last, experiment.rounds)
    position = RoundPosition(lr, last / experiment.rounds, experiment.rounds)
    return RunContext(
        experiment.algorithm,
        experiment.seed,
        lambda round: position,
        public_images,
        threading.Event(),
    )


def _memory(snapshot: Snapshot, client: str) -> Tree:
    if client in snapshot.memory:
        return snapshot.memory[client].tree
    return {}


def _discard(memory: Tree) -> None:
    """Ignore the memory that a client would keep for its next round."""


def _complete_model(upload: Tree, method: Method) -> State:
    """Return the uploaded networks, completed by the parts that a client keeps.

    Parts that are not uploaded (FedBN's norm layers, a client's own predictor) are as its training
    left them. A client may have trained another model after the one it uploads, as in Per-SSFL.
    """
    uploaded = [model(upload, key) for key in NETWORKS if key in upload]
    parts = set(method.online)
    for network in uploaded:
        parts.update(network.layout.parts)
    state = method.state.pick(parts)
    for network in uploaded:
        state.load(network)
    return state.to("cpu")
