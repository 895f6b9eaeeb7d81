"""Ask clients, after the last round, for their own models, which never leave their nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from fedssl.algorithm import Spec
from fedssl.core.console import Notify
from fedssl.core.state.tree import Tree
from fedssl.engine.checkpoints.store import Store
from fedssl.engine.uploads.records import sanitize
from fedssl.experiment.experiment import Experiment
from fedssl.flower.roster import Roster
from fedssl.flower.run_record import RunRecord
from fedssl.flower.runtime import FlowerRuntime
from fedssl.flower.server_settings import ServerSettings


class FinishedRun(Protocol):
    """What is needed of a server's run."""

    experiment: Experiment
    store: Store
    roster: Roster
    settings: ServerSettings
    record: RunRecord

    @property
    def notify(self) -> Notify:
        """The function that prints a line."""

    def runtime(self, schema: Mapping[str, Spec]) -> FlowerRuntime:
        """Return a runtime; `schema` describes an upload."""

    def update_record(self, **changes: Any) -> None:
        """Change fields of the run record and write it."""


def request_own_models(run: FinishedRun) -> None:
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
