"""A run on a Flower server: the round loop of every run, with nodes instead of local clients.

The run directory also has `flower.json`: the clients of the run and the starts of its server.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from flwr.serverapp import Grid
from torch import Tensor

from fedssl.algorithm import Spec
from fedssl.core.console import Notify, meter
from fedssl.core.errors import ConfigError
from fedssl.core.state.layout import Layout
from fedssl.data import Dataset, Images
from fedssl.engine.checkpoints.store import Snapshot, Store
from fedssl.engine.federate import Round
from fedssl.engine.uploads.upload_weights import ImageCounts
from fedssl.evaluation.evaluate import Evaluation
from fedssl.evaluation.probe_images import read_probe_images
from fedssl.experiment.client_data import check_plan, read_data, read_public
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.federation_setup import build_method, first_sites
from fedssl.experiment.init_file import recorded_sha256
from fedssl.flower import frozen_weights
from fedssl.flower.messages import Hello, RoundTask
from fedssl.flower.roster import Roster
from fedssl.flower.run_record import RunRecord
from fedssl.flower.runtime import FlowerRuntime, RoundLimits
from fedssl.flower.secure_aggregation.requirements import (
    REQUIRED_BY_NODE,
    check_clients,
    secure_runtime,
)
from fedssl.flower.server_settings import ServerSettings
from fedssl.runs.callbacks import Callbacks, RunInfo
from fedssl.runs.live_status import LiveStatus, ObservedProgress
from fedssl.runs.session import ActiveRuntime, Session
from fedssl.runs.workload import adapter_line
from fedssl.training.trainer import Trainer


@dataclass(kw_only=True, eq=False)
class ServerRun:
    """One attempt of the server at a run."""

    experiment: Experiment
    folder: Path
    store: Store
    grid: Grid
    settings: ServerSettings
    device: torch.device
    snapshot: Snapshot | None  # that the run resumes from; None: a new run
    notify: Notify
    callbacks: Callbacks = field(default_factory=Callbacks)

    def __post_init__(self) -> None:
        first_round = None if self.snapshot is None else self.snapshot.rounds
        self.record = RunRecord.start_attempt(
            self.folder, first_round, self.settings.secure_aggregation
        )
        registered = self.record.registered
        self.roster = Roster(self.grid, self.check_hello, self.notify, registered=registered)
        self._trainer: tuple[tuple[int, int, int], Trainer] | None = None  # with its image shape

    @cached_property
    def data(self) -> Dataset:
        """The server's images for evaluation; an empty set of the clients' shape if it has none."""
        if self.settings.data_dir:
            root = Path(self.settings.data_dir).expanduser()
            return read_data(self.experiment, root, None, self.notify)
        if self.record.image is None:
            raise ConfigError("no client has joined yet, so the shape of the images is unknown")
        return Dataset(Images(torch.empty(0, *self.record.image, dtype=torch.uint8)))

    @cached_property
    def other(self) -> Dataset | None:
        """The images of `probe.on`; None without the setting."""
        root = Path(self.settings.data_dir or "data").expanduser()
        return read_probe_images(self.experiment, self.data.train.image_shape, root, self.notify)

    def trainer(self, image: tuple[int, int, int]) -> Trainer:
        """Return a trainer for images of a shape; its model defines the first state and uploads."""
        if self._trainer is None or self._trainer[0] != image:
            method = build_method(self.experiment, image, self.device)
            self._trainer = (image, Trainer(method, self.experiment.train))
        return self._trainer[1]

    def check_hello(self, hello: Hello) -> str | None:
        """Return why a node cannot take part; None if it can.

        The shape of the images is fixed when a run begins: the most common one.
        """
        if hello.masked_only and not self.settings.secure_aggregation:
            return REQUIRED_BY_NODE
        if self.record.clients:
            for client in hello.clients:
                if client not in self.record.clients:
                    names = ", ".join(self.record.clients)
                    return f'"{client}" is not one of the clients the run began with: {names}'
            for client, images in hello.clients.items():
                if not images:
                    return f'"{client}" had images when the run began, and has none now'
        if self.record.image not in (None, hello.image):
            return f"its images have shape {hello.image}, those of the run {self.record.image}"
        layout = self.trainer(hello.image).method.state.layout
        difference = layout.first_difference(Layout(hello.layout))
        if difference is not None:
            return f"its model differs: {difference}"
        expected = recorded_sha256(self.experiment.method)
        return frozen_weights.difference(expected, hello.init_sha256)

    def _session(self, clients: Sequence[str], trainer: Trainer) -> Session:
        return Session(
            experiment=self.experiment,
            folder=self.folder,
            store=self.store,
            evaluation=Evaluation(self.experiment, self.data, self.device, other=self.other),
            device=self.device,
            clients=clients,
            checkpoint_every=0.0,
            notify=self.notify,
            method=trainer.method,
            callbacks=self.callbacks,
            connected=self.roster.last_seen,
        )

    def start_callbacks(self, finished: int) -> None:
        """Call the callbacks before the first round that is left; `finished` rounds are done."""
        self.callbacks.start(RunInfo(self.folder, self.folder.name, self.experiment, finished))

    def train(self) -> None:
        """Wait for the clients and train the remaining rounds."""
        self._join()
        assert self.record.image is not None
        clients = list(self.record.clients)
        trainer = self.trainer(self.record.image)
        session = self._session(clients, trainer)
        last = self.snapshot
        if last is None:
            show = partial(meter, notify=self.notify)
            sites = first_sites(self.experiment, trainer, clients, self._public(), show)
            last = session.begin(sites)
        schema = self.experiment.algorithm.upload_schema(trainer.method)
        adapters = adapter_line(trainer.method, schema)
        # A masked upload has eight bytes for each number.
        if adapters is not None and not self.settings.secure_aggregation:
            self.notify(adapters)
        self.start_callbacks(last.rounds)

        def open_runtime(progress: ObservedProgress) -> ActiveRuntime:
            runtime = self.runtime(schema, progress)
            return ActiveRuntime(
                runtime,
                ImageCounts(runtime.declared_images),
                client_memory=dict,
                close=lambda: None,
                quorum=runtime.required,
                on_round=self._on_finished(runtime),
            )

        session.run(
            last,
            open_runtime,
            schema=schema,
            resumed=self.snapshot is not None,
            title=self.folder.name,
            quiet=False,
        )

    def _on_finished(self, runtime: FlowerRuntime) -> Callable[[Round], None]:
        """Return the function to call after each round."""

        def finished(round: Round) -> None:
            runtime.finished(round)
            if self.roster.registered and not self.record.registered:
                self.update_record(registered=True)

        return finished

    def update_record(self, **changes: Any) -> None:
        """Change fields of the run record and write it."""
        self.record = self.record._replace(**changes).write(self.folder)

    def runtime(
        self, schema: Mapping[str, Spec], progress: ObservedProgress | None = None
    ) -> FlowerRuntime:
        """Return the runtime; `schema` describes an upload, and is empty if none is expected."""
        limits = RoundLimits(
            timeout=self.settings.round_timeout,
            quorum=self.settings.quorum,
            min_uploads=max(self.experiment.min_uploads, self.experiment.mean.fewest_uploads),
        )
        observers: dict[str, Any] = {}
        if progress is not None:
            observers = {"on_client": progress.client, "on_sent": progress.start}
        open_runtime: Callable[..., FlowerRuntime] = FlowerRuntime
        if self.settings.secure_aggregation:
            open_runtime = secure_runtime(self.experiment, self.settings, self.snapshot)
        return open_runtime(
            self.grid,
            self.roster,
            self.record.clients,
            make_task=self.task,
            schema=schema,
            limits=limits,
            device=self.device,
            **observers,
        )

    def task(self, client: str, round: int) -> RoundTask:
        """Return the task of a client in a round."""
        starts = self.record.starts
        return RoundTask(
            self.record.run,
            client,
            round,
            attempt=len(starts) - 1,
            starts=starts,
            oldest=self.store.oldest(),
        )

    def _join(self) -> None:
        """Wait for the clients; the first start of a run fixes which ones take part."""
        known = self.record.clients
        expected = len(known) or self.settings.clients or self.experiment.clients
        if not expected:
            raise ConfigError(
                "set `clients` in the app's config: the experiment does not define how many "
                "clients to wait for"
            )
        enough = math.ceil(self.settings.quorum * expected)
        private = self.experiment.privacy.enabled
        rounds = self.experiment.rounds
        with LiveStatus(self.folder, rounds, None, private, self.roster.last_seen) as status:
            status.wait_for_clients(expected)
            joined = self.roster.join(expected, known, enough, timeout=self.settings.join_timeout)
        if not known:
            self._fix_clients(joined)
        self.update_record(registered=self.roster.registered)

    def _fix_clients(self, joined: list[str]) -> None:
        """Record the clients that take part: those that joined and have images."""
        hellos = self.roster.hellos
        clients = [client for client in joined if hellos[client].clients[client]]
        if not clients:
            raise ConfigError("no client has any images")
        check_plan(self.experiment, clients)
        if self.settings.secure_aggregation:
            check_clients(self.experiment, len(clients))
        image = hellos[clients[0]].image
        self.record = self.record._replace(clients=tuple(clients), image=image)

    def _public(self) -> Tensor | None:
        root = Path(self.settings.data_dir or "data").expanduser()
        public = read_public(self.experiment, self.data, root, self.notify)
        return None if public is None else public.to(self.device)
