"""Clients' local models: what each makes of the newest checkpoint in one more local training, before anybody merges.

The papers compare local models within a round (FedCA, Figure 4; Dec-SSL, B.3). A run does not keep them: with a server
they are uploads, gone once they are averaged. So they are made again, from the newest checkpoint. Nothing is merged,
nothing is written into the run directory, and the run can go on as if nobody had looked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from fedssl import assemble
from fedssl.data import Dataset
from fedssl.data.progress import Say, meter
from fedssl.errors import ConfigError
from fedssl.method import Method
from fedssl.numerics import numerics, threads
from fedssl.run import Run
from fedssl.runtimes.attend import NOTHING, Pace, Work, attend
from fedssl.store import Snapshot, Store
from fedssl.train import resolve_precision
from fedssl.tree import State, Tree, model

Read = Callable[[Run], Dataset]  # a run's images

TRAVELS = ("model", "target")  # an upload's networks; what else is in it is about them


def local_models(run: Run, read: Read, say: Say, rate: float | None = None) -> dict[str, State]:
    """Each client's model by its id, on the CPU, after training from what the newest checkpoint would send it.

    Of a run that is not finished this is exactly what its next round begins with. After the last round clients go on
    with its learning rate: if that is near 0, they hardly move, as they did in that round. `rate` is another one. A
    client that cannot train, as one with a single image, has none. `read` gives the run's images.
    """
    snapshot = Store(run.dir).load(say, check_rows=False)
    if snapshot is None:
        raise ConfigError(f"{run.dir} has no checkpoint yet")
    e, device = run.experiment, assemble.training_devices(run.device)[0]
    data = read(run)
    public = run.public(data, say)
    seen, owners = run.deal(data, say)
    owners = {client: index for client, index in owners.items() if len(index)}
    trainer = assemble.build_trainers(e, data.train.image, device, 1)[0]
    shards = assemble.shards(seen, owners, [device])
    last = min(snapshot.rounds, e.rounds - 1)
    pace = Pace(e.train.rate(last, e.rounds) if rate is None else rate, last / e.rounds, e.rounds)
    everybodys = NOTHING if public is None else {device: public.to(device)}
    work = Work(e.algorithm, e.seed, lambda round: pace, everybodys, threading.Event())
    place = e.topology.plan(list(owners), snapshot.rounds, e.seed).home
    found: dict[str, State] = {}
    exact = resolve_precision(e.train.precision, device) == "fp32"
    with (
        meter("training clients", len(place), say) as advance,
        numerics(device, e.train.deterministic, exact),
        threads(e.train.threads),
    ):
        for name, site in place.items():
            message, recall = e.algorithm.broadcast(snapshot.sites[site], name), partial(_memory, snapshot, name)
            reply = attend(work, name, snapshot.rounds, shards[name], trainer, message, recall, _forget, device)
            if reply.upload is None:
                say(f"client {name} has no local model: {reply.error}")
            else:
                found[name] = _whole(reply.upload, trainer.method)
            advance(1)
    return found


def _memory(snapshot: Snapshot, client: str) -> Tree:
    return snapshot.memory[client].tree if client in snapshot.memory else {}


def _forget(memory: Tree) -> None: ...


def _whole(upload: Tree, method: Method) -> State:
    """What was uploaded; what of the model stays with the client (FedBN's norm layers, a predictor of its own) is as
    its training left it. A client may have trained another model since: Per-SSFL's does."""
    sent = [model(upload, key) for key in TRAVELS if key in upload]
    state = method.state.pick({*method.online, *(part for each in sent for part in each.layout.parts)})
    for each in sent:
        state.load(each)
    return state.to("cpu")
