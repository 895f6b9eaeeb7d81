"""Local models of clients: the result of one more local training from the newest checkpoint.

The papers compare local models within a round (FedCA, Figure 4; Dec-SSL, B.3). A run does not keep
them: with a server they are uploads, discarded once they are averaged. They are therefore trained
again from the newest checkpoint. Nothing is merged or written to the run directory, so the run can
be resumed as if it had not been analysed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from fedssl.core.console import Notify, meter
from fedssl.core.devices.precision import numerics, threads
from fedssl.core.devices.select import training_devices
from fedssl.core.errors import ConfigError
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, model
from fedssl.data import Dataset
from fedssl.engine.checkpoints.store import Snapshot, Store
from fedssl.engine.runtimes.client_round import ClientRound, RoundPosition, RunContext, run_client
from fedssl.engine.uploads.records import Reply
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.federation_setup import Federation
from fedssl.method import Method
from fedssl.runs.run import Run
from fedssl.training.trainer import resolve_precision

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
    snapshot = load_checkpoint(run, notify)
    data = read(run)
    public = run.public(data, notify)
    seen, owners = run.partition_data(data, notify)
    device = training_devices(run.device)[0]
    federation = Federation.build(
        run.experiment, seen, owners, public=public, device=device, parallel=1
    )
    position = round_position(run.experiment, snapshot.rounds, lr)
    context = replace(federation.context(threading.Event()), position=lambda round: position)
    plan = run.experiment.topology.plan(federation.clients, snapshot.rounds, run.experiment.seed)
    train = run.experiment.train
    exact = resolve_precision(train.precision, device) == "fp32"
    models = {}
    with (
        meter("training clients", len(plan.site_of), notify) as advance,
        numerics(device, train.deterministic, exact),
        threads(train.threads),
    ):
        for client, site in plan.site_of.items():
            reply = train_client(federation, context, snapshot, client=client, site=site)
            if reply.upload is None:
                notify(f"client {client} has no local model: {reply.error}")
            else:
                models[client] = _complete_model(reply.upload, federation.trainer.method)
            advance(1)
    return models


def load_checkpoint(run: Run, notify: Notify) -> Snapshot:
    """Return the newest checkpoint; raise ConfigError without one."""
    snapshot = Store(run.dir).load(notify, check_rows=False)
    if snapshot is None:
        raise ConfigError(f"{run.dir} has no checkpoint yet: wait for its first round")
    return snapshot


def round_position(experiment: Experiment, rounds: int, lr: float | None) -> RoundPosition:
    """Return the position of the round after `rounds`, or of the last round again."""
    last = min(rounds, experiment.rounds - 1)
    if lr is None:
        lr = experiment.train.lr_at(last, experiment.rounds)
    return RoundPosition(lr, last / experiment.rounds, experiment.rounds)


def train_client(
    federation: Federation, context: RunContext, snapshot: Snapshot, *, client: str, site: str
) -> Reply:
    """Train one client from what its site in the checkpoint would send it."""
    part = ClientRound(
        client=client,
        round=snapshot.rounds,
        shard=federation.shards[client],
        message=context.algorithm.broadcast(snapshot.sites[site], client),
        load_memory=partial(client_memory, snapshot, client),
        store_memory=_discard,
    )
    return run_client(context, part, federation.trainer, federation.device)


def client_memory(snapshot: Snapshot, client: str) -> Tree:
    """Return a client's memory in a checkpoint; empty before its first round."""
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
