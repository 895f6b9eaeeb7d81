"""A run: a directory with an experiment, a rounds log, checkpoints and the trained backbone."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from fedssl import nets
from fedssl.core.console import Notify, ignore_message, print_to_stderr
from fedssl.core.devices.select import resolve_device
from fedssl.core.errors import ConfigError, RunError, explained_errors
from fedssl.core.files import integrity
from fedssl.core.state.state import State
from fedssl.data import Dataset
from fedssl.data.folder import background_of, fit_of
from fedssl.evaluation.evaluate import Evaluation
from fedssl.evaluation.models import Models, saved_models
from fedssl.evaluation.per_client import per_client
from fedssl.evaluation.probe_settings import with_probe_settings
from fedssl.evaluation.score import Score
from fedssl.evaluation.transfer import On, OtherImages, trained_on, transfer_score
from fedssl.experiment import federation_setup
from fedssl.experiment.client_data import partition_data, read_data, read_public
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.plain_values import flatten
from fedssl.experiment.trained_backbone import TrainedBackbones
from fedssl.probes import PROBES
from fedssl.runs.callbacks import Callback, Callbacks, checked, original_errors
from fedssl.runs.collaborative_probe import collaborative
from fedssl.runs.directories import default_dir, directory_line, titled_experiment
from fedssl.runs.finalize import finish
from fedssl.runs.given_inputs import (
    check_same_backbone,
    images_from_python,
    read_images,
    with_given_inputs,
)
from fedssl.runs.input_images import Preprocessing
from fedssl.runs.local import LocalJob, train_locally
from fedssl.runs.resume_checks import (
    check_resumable,
    check_run_directory,
    read_experiment,
    same_images,
)
from fedssl.runs.rounds_log import read_rounds
from fedssl.runs.summary import already_finished, covers_all_rounds
from fedssl.runs.time_estimate import estimate_run
from fedssl.runs.trackers import make_trackers

# Probes that need the images of each client.
WITH_CLIENTS = {"per-client": per_client, "collaborative": collaborative}


class Run:
    """A run directory, finished or not: its experiment, rounds log, models and results.

    Opening a run reads no images and changes no file. `data_dir`, by default `data`, has the data
    sets that probes need; `dataset` are the images, and `backbone` the module or the function that
    makes it, of a run that was started with them from Python. `dir` is the path of the directory,
    `experiment` the experiment that was started there, and `device` where models are measured.

    Raises ConfigError if the directory holds no run, or a run of classes whose module is not
    imported.
    """

    def __init__(
        self,
        folder: str | Path,
        data_dir: str | Path | None = None,
        device: str = "auto",
        dataset: Any = None,
        backbone: Any = None,
    ) -> None:
        self.dir = Path(folder)
        check_run_directory(self.dir)
        self.experiment = read_experiment(self.dir, print_to_stderr)
        if backbone is not None:
            check_same_backbone(self.experiment, backbone)
        self.device = resolve_device(device)
        self._data_dir = Path(data_dir or "data")
        self._dataset = dataset

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """The records of the finished rounds, as in rounds.jsonl."""
        return list(read_rounds(self.dir / "rounds.jsonl"))

    @property
    def results(self) -> dict[str, Any]:
        """The content of results.json; empty while the run is not finished."""
        try:
            results = integrity.read_json(self.dir, "results.json") or {}
        except ValueError:
            path = self.dir / "results.json"
            raise RunError(
                f"{path} is damaged; `fedssl run NAME_OR_FILE --dir {self.dir}` measures the "
                "run again"
            ) from None
        if not covers_all_rounds(results, self.experiment):  # the run was prolonged since
            return {}
        return results

    def data(self, notify: Notify = print_to_stderr) -> Dataset:
        """Read the images of the run."""
        return read_data(self.experiment, self._data_dir, self._dataset, notify)

    def public(self, data: Dataset, notify: Notify = print_to_stderr) -> Tensor | None:
        """Return the public images, if the algorithm needs some; `data` are those of the run."""
        return read_public(self.experiment, data, self._data_dir, notify)

    def partition_data(
        self, data: Dataset, notify: Notify = ignore_message
    ) -> tuple[Dataset, dict[str, Tensor]]:
        """Return the images as clients saw them, and the indices of each client's images.

        Raise ConfigError if these are not the images that the run was trained on.
        """
        seen, owners = partition_data(self.experiment, data, notify)
        if not same_images(self.dir, seen, owners, print_to_stderr):
            raise ConfigError(
                f"the images are not those that {self.dir} was trained on, so the images of each "
                "client are unknown: use the original images"
            )
        return seen, owners

    def models(self) -> Models:
        """Return the models of the newest checkpoint, by name."""
        return saved_models(self.experiment, self.dir, print_to_stderr)

    def backbone(self, model: str | None = None) -> nets.Backbone:
        """Return a trained backbone as a module in eval mode; `model` names one of several.

        It maps images (n, channels, h, w), normalised as in training, to features (n, dim). Raises
        ConfigError if there is no such model, or several and none is named.
        """
        models = self._existing_models()
        if model is None and len(models) > 1:
            raise ConfigError(
                f"this run has several models, set model= to one of: {', '.join(models)}"
            )
        if model is not None and model not in models:
            raise ConfigError(f'this run has no model "{model}"; known: {", ".join(models)}')
        state = models[model or next(iter(models))]
        return TrainedBackbones(self.experiment, self._channels(state)).module(state)

    def load_images(self, paths: Sequence[str | Path]) -> Tensor:
        """Return image files as the input of `backbone()`, prepared as in training.

        The result is float32 (n, channels, size, size): decoded, cropped or padded, scaled and
        normalised like training images, without augmentation. Raises DataError if a file cannot be
        read.
        """
        image = self._image()
        mean, std = federation_setup.normalisation(self.experiment, image[0]) or (None, None)
        data = self.experiment.data
        prepare = Preprocessing(image, mean, std, fit_of(data), background_of(data))
        return prepare(list(paths))

    def _channels(self, state: State) -> int:
        """Return the channels of the run's images: those that a model's first convolution takes.

        A backbone without convolutions, or with adapters, does not tell them; the images do.
        """
        for entry in state.layout.entries:
            # Not the positions of a transformer, nor the factor of an adapter.
            is_weight = entry.name.endswith(".weight")
            if entry.part == "backbone" and is_weight and len(entry.shape) == 4:
                return entry.shape[1]
        return self._image()[0]

    def evaluate(self, probe: str = "linear", on: On | None = None, **settings: Any) -> Score:
        """Return a probe's accuracy in percent for every model.

        Settings are those under [probe], e.g. labels=100. `on` names other images to measure with:
        a data set, a table as under [data], or a Dataset.
        """
        changed = with_probe_settings(self.experiment, probe, settings)
        models = self._existing_models()
        if on is not None and not trained_on(self.experiment, on):
            return self._transfer(changed, probe, on, models)
        data = self.data()
        evaluation = Evaluation(changed, data, self.device, notify=print_to_stderr)
        if probe in WITH_CLIENTS:
            return WITH_CLIENTS[probe](evaluation, models, *self.partition_data(data))
        if PROBES[probe].learns == "few" and changed.data.leave_out:
            self.partition_data(data)  # checks the images: which were left out follows from them
        return evaluation.measure(models, (probe,), models.excluded)[probe]

    def _transfer(self, changed: Experiment, probe: str, on: On, models: Models) -> Score:
        """Return a probe's score on other images than those of pre-training."""
        if probe in WITH_CLIENTS:
            raise ConfigError(
                f'probe "{probe}" uses the images of each client, so it cannot measure on another '
                "data set: leave out on="
            )
        where = OtherImages(on, self._image(), self._data_dir)
        return transfer_score(changed, probe, where, models, self.device)

    def _image(self) -> tuple[int, int, int]:
        """Return the shape (C, H, W) of the run's images, from an exported backbone if possible."""
        for file in sorted(self.dir.glob("backbone*.safetensors")):
            if integrity.is_damaged(self.dir, file.name):
                continue
            with contextlib.suppress(ConfigError, KeyError, ValueError, TypeError):
                channels, height, width = json.loads(nets.read_weights(file)[0]["image"])
                return channels, height, width
        return self.data().train.image_shape

    def _existing_models(self) -> Models:
        """Return the models of the newest checkpoint; report damage to the files next to it."""
        integrity.check(self.dir, print_to_stderr)
        models = self.models()
        if not models:
            raise ConfigError(
                f"{self.dir} has no model yet: each client has its own, after its first round"
            )
        return models

    def __repr__(self) -> str:
        return f"Run({str(self.dir)!r}, {len(self.rounds)}/{self.experiment.rounds} rounds)"


def run(
    experiment: str | Path | Experiment,
    dir: str | Path | None = None,
    device: str = "auto",
    data_dir: str | Path | None = None,
    dataset: Any = None,
    test: Any = None,
    *,
    backbone: Any = None,
    quiet: bool = False,
    set: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
    track: str | Sequence[str] = (),
    **changes: Any,
) -> Run:
    """Run an experiment to its end and return the finished run; resume it if it was started.

    `experiment` is a recipe's name, a TOML file or an Experiment. Settings change by keyword
    (`rounds=3`, `method={"name": "byol"}`) or by dotted key (`set={"algorithm.update": "both"}`);
    in both, a table changes only the keys that it names. `dataset`, and `test` for labelled images
    to measure with, are images from Python: a pair of arrays, a torch or a Hugging Face data set.
    `dataset` may be a dict {client: images}, which defines the clients. `backbone` is a name, a
    torch module that maps images to features, or a function that makes one. `callbacks` are called
    after each round; `track` names trackers. Raises a FedsslError if the experiment cannot be run.
    """
    changed = with_given_inputs(flatten(changes) | flatten(set or {}), dataset, backbone)
    dataset = images_from_python(dataset, test)
    title, original, chosen = titled_experiment(experiment, changed)
    on = resolve_device(device)
    folder = default_dir(title, chosen, original, on) if dir is None else Path(dir)
    # Checked again under the lock, but here before images are read.
    check_resumable(chosen, folder, on, ignore_message)
    notify = ignore_message if quiet else print_to_stderr
    called = Callbacks([*make_trackers(track, notify), *checked(callbacks)])
    root = Path(data_dir or "data")
    images = read_images(chosen, root, dataset, notify)
    notify(directory_line(title, chosen, folder, on))
    job = LocalJob(chosen, folder, images.data, images.public, on, title, quiet, estimate_run)
    _train_and_measure(replace(job, other=images.other, callbacks=called))
    return Run(folder, root, device, dataset)


def _train_and_measure(job: LocalJob) -> None:
    """Train the rounds that are left, and measure the run unless that is done already."""
    with original_errors(), explained_errors(job.folder), contextlib.closing(job.callbacks):
        train_locally(job)
        measure = partial(finish, device=job.device, quiet=job.quiet, other=job.other)
        if not measure(job.folder, job.data, job.public):
            job.notify(already_finished(job.folder, job.experiment))
        job.callbacks.end(Run(job.folder).results)
