"""Clients' local models: what each makes of the newest checkpoint in one more local training, before anybody merges.

The papers compare local models within a round (FedCA, Figure 4; Dec-SSL, B.3). A run does not keep them: with a server
they are uploads, gone once they are averaged. So they are made again, from the newest checkpoint. Nothing is merged,
nothing is written into the run directory, and the run can go on as if nobody had looked.
"""

from __future__ import annotations

from fedssl import assemble
from fedssl.client import Client
from fedssl.data.progress import Say, meter
from fedssl.errors import ConfigError
from fedssl.numerics import numerics
from fedssl.run import Run
from fedssl.store import Store
from fedssl.tiers import on_device
from fedssl.train import resolve_precision
from fedssl.tree import State


def local_models(run: Run, say: Say, rate: float | None = None) -> dict[str, State]:
    """Each client's model by its id, on the CPU, after training from what the newest checkpoint would send it.

    Of a run that is not finished this is exactly what its next round begins with. After the last round clients go on
    with its learning rate: if that is near 0, they hardly move, as they did in that round. `rate` is another one.
    """
    snapshot = Store(run.dir).load(say, check_rows=False)
    if snapshot is None:
        raise ConfigError(f"{run.dir} has no checkpoint yet")
    e, device = run.experiment, assemble.training_devices(run.device)[0]
    data = run.data(say)
    public = run.public(data, say)
    seen, owners = assemble.deal(e, data, say)
    owners = {client: index for client, index in owners.items() if len(index)}
    trainer = assemble.build_trainers(e, data.train.image, device, 1)[0]
    shards = assemble.shards(seen, owners, [device])
    round, last = snapshot.rounds, min(snapshot.rounds, e.rounds - 1)
    place = e.topology.plan(list(owners), round, e.seed).home
    found: dict[str, State] = {}
    exact = resolve_precision(e.train.precision, device) == "fp32"
    with meter("training clients", len(place), say) as advance, numerics(device, e.train.deterministic, exact):
        for name, site in place.items():
            memory = snapshot.memory[name].tree if name in snapshot.memory else {}
            client = Client(
                name,
                shards[name].on(device),
                shards[name].labels,
                on_device(memory, device),
                trainer,
                e.seed,
                round,
                e.train.rate(last, e.rounds) if rate is None else rate,
                last / e.rounds,
                e.rounds,
                None if public is None else public.to(device),
            )
            message = on_device(e.algorithm.broadcast(snapshot.sites[site], name), device)
            with trainer.active():
                e.algorithm.client(client, message)
            found[name] = trainer.method.state.to("cpu").clone()
            advance(1)
    return found
