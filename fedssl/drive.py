"""Driving a run on this machine: the images are read and dealt here, and every client trains in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median_low

import torch
from torch import Tensor

from fedssl import assemble, integrity, kernels
from fedssl.agree import EXPERIMENT, FLOWER, IMAGES, agree, agree_on_images, started
from fedssl.client import Meter, unmetered
from fedssl.data import Dataset
from fedssl.data.progress import Say, meter, say_nothing, say_on_stderr
from fedssl.errors import ConfigError
from fedssl.evaluate import Evaluation
from fedssl.experiment import Experiment
from fedssl.lock import entered
from fedssl.loop import STOPPING as STOPPING
from fedssl.loop import Carrier, Loop, found, refuse_fruitless
from fedssl.loop import Interrupted as Interrupted
from fedssl.memory import Memory
from fedssl.numerics import numerics
from fedssl.report.progress import Progress
from fedssl.runtimes.local import LocalRuntime
from fedssl.store import Snapshot, Store
from fedssl.train import Trainer, resolve_mode, resolve_precision
from fedssl.upload_weights import ImageCounts


def drive(
    experiment: Experiment,
    folder: Path,
    data: Dataset,
    public: Tensor | None,
    device: torch.device,
    title: str,
    quiet: bool,
) -> None:
    """Train what is left of an experiment in its directory; nothing if it is finished."""
    say: Say = say_nothing if quiet else say_on_stderr
    train = experiment.train
    exact = resolve_precision(train.precision, device) == "fp32"
    mode, problem = resolve_mode(train.mode, device), kernels.missing(device)
    if mode == "captured" and problem:
        say(f"{problem}: nothing is compiled, and training runs at about half its speed")
    if mode != "eager":
        torch.compiler.reset()  # what other runs of this process have compiled must not decide how this one computes
    with entered(folder), numerics(device, train.deterministic, exact):
        _refuse_flower(folder)
        integrity.repair(folder, say)
        experiment = agree(experiment, folder, device, say)
        store = Store(folder)
        snapshot = found(folder, store, say)
        if snapshot is not None:
            integrity.adopt(folder, say)
        seen, owners = assemble.deal(experiment, data, say)
        images = agree_on_images(experiment, folder, seen, owners, public, say)

        def record() -> None:
            """Write what the directory is about. Only now: a start that is refused leaves nothing behind."""
            integrity.write_copied(folder, EXPERIMENT, experiment.to_toml())
            integrity.write_copied(folder, IMAGES, images)
            integrity.remove_copied(folder, FLOWER)  # of a start on Flower that failed

        if snapshot is None or snapshot.rounds < experiment.rounds:
            evaluation = Evaluation(experiment, data, device)
            turn = Drive(experiment, folder, seen, public, owners, evaluation, device, store, say)
            turn.train(snapshot, title, quiet, record)
        else:
            record()
        refuse_fruitless(folder)


def _refuse_flower(folder: Path) -> None:
    on_flower = (folder / FLOWER).is_file() or integrity.copy_of(folder, FLOWER) is not None
    if on_flower and started(folder):
        raise ConfigError(
            f"{folder} holds a run on Flower, and what its clients remember is on their own disks: go on with it "
            "there, or choose another --dir"
        )


class Drive:
    """One process's turn at a run whose clients are all here."""

    def __init__(
        self,
        experiment: Experiment,
        folder: Path,
        data: Dataset,
        public: Tensor | None,
        owners: Mapping[str, Tensor],
        evaluation: Evaluation,
        device: torch.device,
        store: Store,
        say: Say,
    ) -> None:
        self.experiment, self.device, self.store = experiment, device, store
        # Only those with images: a site of a client that never trains would be measured as if it had.
        owners = {client: index for client, index in owners.items() if len(index)}
        self.clients = list(owners)
        asked = experiment.topology.plan(self.clients, 0, experiment.seed).home
        most_images = max(len(index) for index in owners.values())
        self.trainers = assemble.build_trainers(experiment, data.train.image, device, len(asked), most_images)
        devices = dict.fromkeys(trainer.device for trainer in self.trainers)
        self.shards = assemble.shards(data, owners, devices)
        self.public = {} if public is None else {each: public.to(each) for each in devices}
        home, every = self.trainers[0].device, experiment.train.checkpoint_every
        self.loop = Loop(experiment, folder, store, evaluation, home, self.clients, every, say)

    def train(self, resumed: Snapshot | None, title: str, quiet: bool, record: Callable[[], None]) -> None:
        """Train the rounds that are left; `record` is called when nothing can be refused any more."""
        trainer = self.trainers[0]
        bar: Meter = unmetered if quiet else lambda what, total: meter(what, total, self.loop.say)
        last = resumed
        if last is None:
            public = self.public.get(trainer.device)
            sites = assemble.first_sites(self.experiment, trainer, self.clients, public, bar)
            record()
            last = self.loop.begin(sites)
        else:
            record()
        tier, ahead = self.experiment.train.memory, len(self.trainers)
        memory = Memory(self.store.rows, last.memory, tier, self.device, len(self.clients), ahead)
        wire = self.experiment.algorithm.wire(trainer.method)
        if resumed is None:
            self._caution(trainer)
        self.loop.run(last, resumed is not None, wire, lambda progress: self._carrier(memory, progress), title, quiet)

    def _caution(self, trainer: Trainer) -> None:
        """What the method has to say about a usual client: with the median number of images."""
        sizes = [shard.images for shard in self.shards.values() if shard.images > 1]
        if not sizes:
            return
        usual = median_low(sizes)
        batch, epochs = min(self.experiment.train.batch, usual), self.experiment.train.epochs
        if caution := trainer.method.caution(epochs * (usual // batch) * batch):
            self.loop.say(f"a client with {usual:,} images, as many as the median one has, {caution}")

    def _carrier(self, memory: Memory, progress: Progress) -> Carrier:
        e, stop = self.experiment, threading.Event()
        pace = assemble.pace(e)
        runtime = LocalRuntime(
            e.algorithm, self.shards, self.trainers, memory, e.seed, pace, stop, progress.client, self.public
        )

        def close() -> None:
            stop.set()
            runtime.close()
            memory.close()

        counts = ImageCounts(lambda: {client: shard.images for client, shard in self.shards.items()}, verified=True)
        return Carrier(runtime, counts, memory.snapshot, close)
