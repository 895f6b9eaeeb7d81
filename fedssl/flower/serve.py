"""Run an experiment on the server of a Flower app: train, measure and export."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from flwr.serverapp import Grid

from fedssl.core.console import Notify, print_to_stderr
from fedssl.core.devices.precision import numerics
from fedssl.core.devices.select import resolve_device, training_devices
from fedssl.core.errors import RunError
from fedssl.core.files import integrity
from fedssl.core.files.lock import locked_directory
from fedssl.core.state.tree import Tree
from fedssl.engine.checkpoints.store import Store
from fedssl.engine.uploads.records import sanitize
from fedssl.experiment.experiment import Experiment
from fedssl.flower.secure_aggregation.requirements import check_secure
from fedssl.flower.server_run import ServerRun
from fedssl.flower.server_settings import ServerSettings
from fedssl.runs.callbacks import Callbacks
from fedssl.runs.finalize import finish
from fedssl.runs.resume_checks import announce_changed_modules, check_resumable, record_experiment
from fedssl.runs.session import load_newest, raise_if_no_round_succeeded
from fedssl.runs.trackers import make_trackers
from fedssl.training.trainer import resolve_precision

RELAYED = "the server relays the models of all peers, and sees them"


def serve(
    experiment: Experiment, grid: Grid, settings: ServerSettings, notify: Notify = print_to_stderr
) -> None:
    """Train the remaining rounds of a run on the nodes of a grid, then evaluate and export."""
    callbacks = Callbacks(make_trackers(settings.track, notify))
    folder = Path(settings.run_dir).expanduser()
    device = resolve_device(settings.device)
    experiment.check()
    check_secure(experiment, settings, notify)
    if not experiment.topology.has_server:
        notify(RELAYED)
    exact = resolve_precision(experiment.train.precision, device) == "fp32"
    with closing(callbacks):
        with locked_directory(folder), numerics(device, experiment.train.deterministic, exact):
            integrity.repair(folder, notify)
            experiment = check_resumable(experiment, folder, device, notify)
            store = Store(folder)
            snapshot = load_newest(folder, store, notify)
            if snapshot is not None:
                integrity.adopt(folder, notify)
            trains = snapshot is None or snapshot.rounds < experiment.rounds
            announce_changed_modules(folder, notify, trains=trains)
            run = ServerRun(
                experiment=experiment,
                folder=folder,
                store=store,
                grid=grid,
                settings=settings,
                device=training_devices(device)[0],
                snapshot=snapshot,
                notify=notify,
                callbacks=callbacks,
            )
            record_experiment(folder, experiment, trains=trains)
            _train(run)
        finish(folder, run.data, None, device, quiet=False, train_baselines=False, other=run.other)
        callbacks.end(integrity.read_json(folder, "results.json") or {})


def _train(run: ServerRun) -> None:
    """Train the rounds that are left, and let clients store their own models."""
    if run.snapshot is None or run.snapshot.rounds < run.experiment.rounds:
        try:
            run.train()
        except RunError:
            run.roster.notices.flush()
            raise
        run.roster.notices.flush()
    else:
        run.start_callbacks(run.snapshot.rounds)
    raise_if_no_round_succeeded(run.folder)
    if run.experiment.algorithm.personalises:
        _request_own_models(run)


def _request_own_models(run: ServerRun) -> None:
    """Ask the clients that have no own model of the last round yet to make and store it.

    A client's own model never leaves its node. A client that is not connected makes its model
    when the run is submitted again.
    """
    snapshot = run.store.load(run.notify, check_rows=False)
    assert snapshot is not None
    rounds = snapshot.rounds
    kept = run.record.kept
    clients = [client for client in run.record.clients if kept.get(client) != rounds]
    if not clients:
        return
    run.roster.wait(clients, len(clients), run.settings.join_timeout)
    shared_site = next(iter(snapshot.sites.values()))

    def message(client: str) -> Tree:
        site = snapshot.sites.get(client, shared_site)
        return run.experiment.algorithm.broadcast(site, client)

    runtime = run.runtime({})
    for reply in runtime.request_own_models(rounds, clients, message):
        if reply.error is None:
            run.notify(f"client {reply.client} has stored its own model")
            run.update_record(kept={**run.record.kept, reply.client: rounds})
        else:
            run.notify(
                f"client {reply.client} has not stored its own model: {sanitize(reply.error)}"
            )
