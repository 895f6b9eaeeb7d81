"""The runs that a finished run is compared with, as `probe.beside` names them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedssl import federation
from fedssl.core.console import ignore_message, print_to_stderr
from fedssl.core.errors import FedsslError
from fedssl.core.state.state import State
from fedssl.data import Dataset
from fedssl.evaluation.models import Models, saved_models
from fedssl.experiment.experiment import Experiment
from fedssl.runs.local import LocalRun, train_locally
from fedssl.runs.resume_checks import undamaged


@dataclass(frozen=True)
class Comparisons:
    """Runs of the same experiment with another topology, in directories below that of the run."""

    experiment: Experiment
    folder: Path
    data: Dataset
    public: Tensor | None
    device: torch.device
    names: list[str]  # topologies, and "random" for untrained models
    quiet: bool

    def is_same_training(self, name: str) -> bool:
        """True if the run that is compared has this topology itself: both give the same bits."""
        return self._experiment(name).topology == self.experiment.topology

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
        changes = {"probe.every": 0, "probe.beside": [], "probe.picture": False}
        return self.experiment.with_changes({"topology.name": name, **changes})

    def _train(self, name: str) -> None:
        train_locally(
            LocalRun(
                self._experiment(name),
                self.folder / name,
                self.data,
                public=self.public,
                device=self.device,
                title=name,
                quiet=self.quiet,
            )
        )


def untrained_models(
    experiment: Experiment, image: tuple[int, int, int], device: torch.device
) -> dict[str, State]:
    """Return the model with the first weights that the seed gives, without `method.init`."""
    method = experiment.method.model_copy(update={"init": None})
    untrained = experiment.model_copy(update={"method": method})
    return {"random": federation.build_method(untrained, image, device).state}
