"""A run on a Flower server: the round loop of every run, with nodes in place of clients in this process.

In the run directory beside what every run has: `flower.json`, who takes part and how often the server has begun.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from flwr.serverapp import Grid
from pydantic import Field
from torch import Tensor

import fedssl
from fedssl import assemble, integrity
from fedssl.agree import EXPERIMENT, agree
from fedssl.algorithm import Spec
from fedssl.data import Dataset, Images
from fedssl.data.progress import Say, meter, say_on_stderr
from fedssl.errors import ConfigError, RunError
from fedssl.evaluate import Evaluation
from fedssl.experiment import Experiment
from fedssl.federate import Round
from fedssl.finish import finish
from fedssl.guard import Reply, plain
from fedssl.lock import entered
from fedssl.loop import Carrier, Loop, found, refuse_fruitless
from fedssl.numerics import numerics
from fedssl.report.progress import Progress
from fedssl.runtimes.flower.members import Members
from fedssl.runtimes.flower.roll import Roll
from fedssl.runtimes.flower.server import FlowerRuntime
from fedssl.runtimes.flower.words import Hello, Task
from fedssl.settings import Settings, validate
from fedssl.store import Snapshot, Store
from fedssl.train import Trainer, resolve_precision
from fedssl.upload_weights import ImageCounts

RELAYED = "peers' models are relayed by the server here: it sees every one of them"


class ServerSettings(Settings):
    """[tool.flwr.app.config] of an app, with dashes for underscores."""

    run_dir: str = "runs/flower"  # on the server's disk
    data_dir: str = ""  # where the server finds the experiment's labelled images to measure with; empty: it has none
    memory_dir: str = ""  # of nodes that are not told one, as in Flower's simulation
    device: str = "auto"
    clients: int = Field(0, ge=0)  # to wait for; all who are there by then take part; 0: the experiment's number
    join_timeout: float = Field(600.0, gt=0)  # seconds
    round_timeout: float = Field(3600.0, gt=0)  # seconds
    quorum: float = Field(0.5, ge=0, le=1)  # the share of those asked that must answer, or the round fails

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> ServerSettings:
        return validate(cls, {key.replace("-", "_"): value for key, value in config.items()}, "tool.flwr.app.config")


def serve(experiment: Experiment, grid: Grid, settings: ServerSettings, say: Say = say_on_stderr) -> None:
    """Train what is left of an experiment in its directory on the nodes of a grid, and export what came of it."""
    folder, device = Path(settings.run_dir).expanduser(), assemble.resolve_device(settings.device)
    experiment.check()
    if not experiment.topology.has_server:
        say(RELAYED)
    exact = resolve_precision(experiment.train.precision, device) == "fp32"
    with entered(folder), numerics(device, experiment.train.deterministic, exact):
        integrity.repair(folder, say)
        experiment = agree(experiment, folder, device, say)
        store = Store(folder)
        snapshot = found(folder, store, say)
        if snapshot is not None:
            integrity.adopt(folder, say)
        serving = Serving(experiment, folder, store, grid, settings, device, snapshot, say)
        integrity.write_copied(folder, EXPERIMENT, experiment.to_toml())
        if snapshot is None or snapshot.rounds < experiment.rounds:
            try:
                serving.train()
            except RunError:
                serving.members.notices.flush()
                raise
            serving.members.notices.flush()
        refuse_fruitless(folder)
        if experiment.algorithm.personalises:
            serving.let_keep()
    finish(folder, serving.data, None, device, quiet=False, alone=True)


class Serving:
    """The server's turn at a run."""

    def __init__(
        self,
        experiment: Experiment,
        folder: Path,
        store: Store,
        grid: Grid,
        settings: ServerSettings,
        device: torch.device,
        snapshot: Snapshot | None,
        say: Say,
    ) -> None:
        self.experiment, self.folder, self.store, self.grid = experiment, folder, store, grid
        self.settings, self.snapshot, self.say = settings, snapshot, say
        self.device = assemble.training_devices(device)[0]
        self.roll = Roll.of(folder, None if snapshot is None else snapshot.rounds)
        self.members = Members(grid, self.fits, say, self.roll.registered)
        self._read: Dataset | None = None
        self._model: tuple[tuple[int, int, int], Trainer] | None = None

    @property
    def data(self) -> Dataset:
        """Images to measure with, if the server has been given any; else none, of the clients' shape."""
        if self._read is None and self.settings.data_dir:
            root = Path(self.settings.data_dir).expanduser()
            self._read = assemble.read_data(self.experiment, root, None, self.say)
        if self._read is None:
            if self.roll.image is None:
                raise ConfigError("nobody has joined yet: the shape of the images is not known")
            self._read = Dataset(Images(torch.empty(0, *self.roll.image, dtype=torch.uint8)))
        return self._read

    def trainer(self, image: tuple[int, int, int]) -> Trainer:
        """A model for images of a shape, for the first state of the sites and what uploads must look like."""
        if self._model is None or self._model[0] != image:
            method = assemble.build_method(self.experiment, image, self.device)
            self._model = image, Trainer(method, self.experiment.train)
        return self._model[1]

    def fits(self, hello: Hello) -> str | None:
        """Why a node cannot take part. Of which shape images are is settled when a run begins: as most have them."""
        if hello.version != fedssl.__version__:
            return f"it has fedssl {hello.version}, the server {fedssl.__version__}"
        strangers = [client for client in hello.clients if client not in self.roll.clients]
        if self.roll.clients and strangers:
            return f'"{strangers[0]}" was not there when the run began: {", ".join(self.roll.clients)} were'
        empty = [client for client, images in hello.clients.items() if not images]
        if self.roll.clients and empty:
            return f'"{empty[0]}" had images when the run began, and has none now'
        if self.roll.image not in (None, hello.image):
            return f"its images are {hello.image}, others' {self.roll.image}"
        difference = self.trainer(hello.image).method.state.layout.first_difference(hello.layout)
        return None if difference is None else f"its model is another: {difference}"

    def train(self) -> None:
        self._join()
        assert self.roll.image is not None
        clients, trainer = list(self.roll.clients), self.trainer(self.roll.image)
        evaluation = Evaluation(self.experiment, self.data, self.device)
        loop = Loop(self.experiment, self.folder, self.store, evaluation, self.device, clients, 0.0, self.say)
        last = self.snapshot or loop.begin(
            assemble.first_sites(
                self.experiment, trainer, clients, self._public(), lambda what, total: meter(what, total, self.say)
            )
        )
        wire = self.experiment.algorithm.wire(trainer.method)

        def carry(progress: Progress) -> Carrier:
            runtime = self._runtime(wire, progress.client)
            return Carrier(
                runtime,
                ImageCounts(runtime.declared_images),
                remembered=dict,
                close=lambda: None,
                quorum=runtime.required,
                finished=self._finished(runtime),
            )

        loop.run(last, self.snapshot is not None, wire, carry, self.folder.name, quiet=False)

    def _finished(self, runtime: FlowerRuntime) -> Callable[[Round], None]:
        def finished(round: Round) -> None:
            runtime.finished(round)
            if self.members.registered and not self.roll.registered:
                self.roll = self.roll._replace(registered=True).write(self.folder)

        return finished

    def _runtime(self, wire: Mapping[str, Spec], on_client: Callable[[Reply], None]) -> FlowerRuntime:
        s, clients = self.settings, self.roll.clients
        least = self.experiment.min_uploads
        return FlowerRuntime(
            self.grid, self.members, clients, self.task, wire, s.round_timeout, s.quorum, least, self.device, on_client
        )

    def let_keep(self) -> None:
        """Models of the clients' own are made at the clients, and nobody else gets to see them. Who was not there has
        its own when the run is submitted again."""
        snapshot = self.store.load(self.say, check_rows=False)
        assert snapshot is not None
        rounds, sites, broadcast = snapshot.rounds, snapshot.sites, self.experiment.algorithm.broadcast
        without = [client for client in self.roll.clients if self.roll.kept.get(client) != rounds]
        if not without:
            return
        self.members.wait(without, len(without), self.settings.join_timeout)
        only = next(iter(sites.values()))
        runtime = self._runtime({}, lambda reply: None)
        for reply in runtime.keep(rounds, without, lambda client: broadcast(sites.get(client, only), client)):
            told = "has its own model, beside what it remembers" if reply.error is None else plain(reply.error)
            self.say(f"client {reply.client} {told}")
            if reply.error is None:
                self.roll = self.roll._replace(kept={**self.roll.kept, reply.client: rounds}).write(self.folder)

    def task(self, client: str, round: int) -> Task:
        starts = self.roll.starts
        return Task(self.roll.run, client, round, len(starts) - 1, starts, self.store.oldest())

    def _join(self) -> None:
        known = self.roll.clients
        expected = len(known) or self.settings.clients or self.experiment.clients
        if not expected:
            raise ConfigError("the app's config must say how many clients to wait for: the experiment does not")
        enough = math.ceil(self.settings.quorum * expected)
        joined = self.members.join(expected, known, enough, self.settings.join_timeout)
        if not known:
            hellos = self.members.hellos
            having = [client for client in joined if hellos[client].clients[client]]
            if not having:
                raise ConfigError("no client has any images")
            assemble.check_plan(self.experiment, having)
            self.roll = self.roll._replace(clients=tuple(having), image=hellos[having[0]].image)
        self.roll = self.roll._replace(registered=self.members.registered).write(self.folder)

    def _public(self) -> Tensor | None:
        root = Path(self.settings.data_dir or "data").expanduser()
        public = assemble.read_public(self.experiment, self.data, root, self.say)
        return None if public is None else public.to(self.device)
