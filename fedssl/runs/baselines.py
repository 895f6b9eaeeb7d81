"""Baselines: untrained models, and runs with another topology, that a run is compared with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedssl.core.console import Notify, approximate_time, ignore_message, print_to_stderr
from fedssl.core.errors import FedsslError
from fedssl.core.state.state import State
from fedssl.data import Dataset
from fedssl.evaluation.evaluate import Evaluation
from fedssl.evaluation.models import Models, saved_models
from fedssl.evaluation.verdict import THIS_RUN
from fedssl.experiment import federation_setup
from fedssl.experiment.baseline_names import UNTRAINED, first_model_name
from fedssl.experiment.experiment import Experiment
from fedssl.runs.local import LocalJob, train_locally
from fedssl.runs.resume_checks import undamaged
from fedssl.runs.rounds_log import read_rounds
from fedssl.runs.time_left import FollowingWork

MAX_RELATIVE_TIME = 2.0  # of a baseline that is trained without being asked for


class Choice(NamedTuple):
    """The baselines of a run."""

    names: list[str]
    note: str | None = None  # on the time of those that the experiment does not name


def baselines_of(evaluation: Evaluation, folder: Path, train_baselines: bool) -> Choice:
    """Return the baselines of a run; none without labels, since nothing is measured then.

    Without `train_baselines`, these are untrained models only.
    """
    if not evaluation.images.possible:
        return Choice([])
    choice = choose_baselines(evaluation.experiment, read_rounds(folder / "rounds.jsonl"))
    if train_baselines:
        return choice
    return Choice([name for name in choice.names if name in UNTRAINED])


def choose_baselines(experiment: Experiment, rounds: Iterable[Mapping[str, Any]]) -> Choice:
    """Return the baselines that an experiment names or, if it names none, those worth their time.

    `rounds` are the records of the finished run. Clients that train alone take part in every
    round, so they take longer than the run if only some clients took part in each.
    """
    cost = _isolated_cost(rounds)
    names = baseline_names(experiment, cost.relative)
    if experiment.probe.baselines is not None or not _can_train_alone(experiment):
        return Choice(names)
    time = approximate_time(cost.seconds)
    if "isolated" in names:
        return Choice(
            names,
            f"each client also trains alone, for comparison: about {time}; --no-baselines skips it",
        )
    return Choice(
        names,
        f"clients do not train alone for comparison: it would take about {time}, "
        f"{cost.relative:.1f} times as long as this run; --baselines random,isolated does it",
    )


def baseline_names(experiment: Experiment, relative: float) -> list[str]:
    """Return the baselines if training clients alone takes `relative` times as long as the run."""
    if experiment.probe.baselines is not None:
        return list(experiment.probe.baselines)
    first = first_model_name(experiment.method)
    if relative <= MAX_RELATIVE_TIME and _can_train_alone(experiment):
        return [first, "isolated"]
    return [first]


def _can_train_alone(experiment: Experiment) -> bool:
    """True if clients without a server are another training than the run."""
    if experiment.privacy.enabled:  # they train without noise
        return False
    return experiment.topology.merges and not experiment.algorithm.needs_server


def announce(folder: Path, choice: Choice, notify: Notify) -> None:
    """Print how long training the baselines of a run takes."""
    if choice.note is not None and not (folder / "isolated").is_dir():
        notify(choice.note)


class Cost(NamedTuple):
    """The estimated time of training each client alone."""

    seconds: float
    relative: float  # to the time of the run


def _isolated_cost(rounds: Iterable[Mapping[str, Any]]) -> Cost:
    """Estimate the time of training alone, from the clients that took part in each round."""
    seconds = 0.0
    trained = 0
    clients: set[str] = set()
    count = 0
    for line in rounds:
        seconds += line["seconds"]
        trained += len(line["clients"])
        clients.update(client["client"] for client in line["clients"])
        count += 1
    relative = len(clients) * count / max(1, trained)
    return Cost(seconds * relative, relative)


@dataclass(frozen=True)
class Baselines:
    """Runs of the same experiment with another topology, in directories below that of the run."""

    experiment: Experiment
    folder: Path
    data: Dataset
    public: Tensor | None
    device: torch.device
    names: list[str]  # topologies, and those of models before training
    quiet: bool

    def is_same_training(self, name: str) -> bool:
        """True if the run that is compared has this topology itself: both give the same bits."""
        return self._experiment(name).topology == self.experiment.topology

    def folder_of(self, row: str) -> Path:
        """Return the run directory of the models in a row of the results."""
        if row == THIS_RUN or self.is_same_training(row):
            return self.folder
        return self.folder / row

    def trained_models(self, name: str) -> Models:
        """Train one of the runs, or resume it, and return its models."""
        self._train(name)
        return saved_models(self._experiment(name), self.folder / name, ignore_message)

    def repair(self) -> None:
        """Repair the runs of which any file is damaged.

        One that cannot be repaired is only reported: the results of the finished run do not depend
        on it any more.
        """
        for name in self.names:
            folder = self.folder / name
            if not (folder / "experiment.toml").is_file() or undamaged(folder):
                continue
            try:
                self._train(name)
            except FedsslError as problem:
                print_to_stderr(f"{folder} is damaged and could not be repaired: {problem}")

    def _experiment(self, name: str) -> Experiment:
        changes: dict[str, Any] = {
            "probe.every": 0,
            "probe.on": None,
            "probe.baselines": [],
            "probe.picture": False,
        }
        alone = {"topology.name": name, "mean": {"name": "weighted"}}  # no models are merged
        return self.experiment.with_changes({**alone, **changes})

    def _train(self, name: str) -> None:
        train_locally(
            LocalJob(
                self._experiment(name),
                self.folder / name,
                self.data,
                public=self.public,
                device=self.device,
                title=name,
                quiet=self.quiet,
                later=FollowingWork(part="this baseline", estimated=False),
            )
        )


def untrained_models(
    experiment: Experiment, image: tuple[int, int, int], device: torch.device, name: str
) -> dict[str, State]:
    """Return the model before training by the name of its baseline.

    `start` has the weights of `method.init`, `random` those that the seed gives without it.
    """
    if name == "random":
        method = experiment.method.model_copy(update={"init": None, "adapters": None})
        experiment = experiment.model_copy(update={"method": method})
    return {name: federation_setup.build_method(experiment, image, device).state}
