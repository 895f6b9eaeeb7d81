"""Select the models of runs, and compute their features of the same test images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedssl.analysis.analysis import Analysis, run_names
from fedssl.analysis.local import ReadData, local_models
from fedssl.core.console import Notify, meter
from fedssl.core.devices.precision import float32
from fedssl.core.errors import ConfigError
from fedssl.core.state.state import State
from fedssl.data import Dataset, Images
from fedssl.evaluation.evaluate import Evaluation
from fedssl.experiment import federation_setup
from fedssl.runs.run import Run


class Model(NamedTuple):
    """One model of a run; `state` loads it."""

    run: Run
    state: Callable[[], State]


def data_reader(notify: Notify) -> ReadData:
    """Return a function that reads a run's images, once for each run."""
    return cache(partial(Run.data, notify=notify))


class ModelAnalysis(Analysis):
    """An analysis of models: those of the newest checkpoint, or of one more local training."""

    local: bool = False  # compare models that clients train once more from the newest checkpoint
    lr: float | None = Field(None, gt=0)  # learning rate of that training; None: the round's
    models: tuple[str, ...] = ()  # names of models; none: all

    def select_models(
        self, runs: Sequence[Run], read: ReadData, notify: Notify, *, min_models: int = 1
    ) -> dict[str, Model]:
        """Return the selected models by name; with several runs, as RUN/MODEL.

        Images are read for local models only.
        """
        models: dict[str, Model] = {}
        for run_name, run in zip(run_names(runs), runs, strict=True):
            prefix = f"{run_name}/" if len(runs) > 1 else ""
            for name, load in self._load_models(run, read, notify).items():
                models[f"{prefix}{name}"] = Model(run, load)
        for name in self.models:
            if name not in models:
                raise ConfigError(f'there is no model "{name}"; there are: {", ".join(models)}')
        if self.models:
            models = {name: model for name, model in models.items() if name in self.models}
        if len(models) < min_models:
            raise ConfigError(
                f"there is only one model, {', '.join(models)}, and nothing to compare it with: "
                "give several runs, or compare local models that each client trains once more "
                "with --set local=true"
            )
        return models

    def _load_models(
        self, run: Run, read: ReadData, notify: Notify
    ) -> dict[str, Callable[[], State]]:
        models: Mapping[str, State]
        if self.local:
            models = local_models(run, read, notify, self.lr)
        else:
            models = run.models()
        if not models:
            raise ConfigError(f"{run.dir} has no model yet: wait until a client has trained")
        return {name: partial(models.__getitem__, name) for name in models}


class FeatureAnalysis(ModelAnalysis):
    """An analysis of the models' features of test images."""

    images: int = Field(1000, gt=1)  # number of test images, from the first on
    what: Literal["h", "z"] = "h"  # features of the backbone, or projections

    def features(
        self, models: Mapping[str, Model], read: ReadData, notify: Notify
    ) -> tuple[dict[str, Tensor], Images]:
        """Return unit features (n, d) of the same n test images by model, and the images."""
        data = {}
        for model in models.values():
            data[model.run] = read(model.run)
        test = same_images(data, self.images)
        features = {}
        with meter("computing features", len(models), notify) as advance:
            for name, model in models.items():
                run = model.run
                evaluation = Evaluation(run.experiment, data[run], run.device)
                if self.what == "h":
                    rows = evaluation.features(model.state(), test.pixel_rows)
                else:
                    rows = projections(run, model.state(), test)
                features[name] = F.normalize(rows.double().cpu(), dim=1)
                advance(1)
        return features, test


def check_equal_widths(features: Mapping[str, Tensor]) -> None:
    """Raise ConfigError if features (n, d) of some models differ in d."""
    widths = {rows.shape[1] for rows in features.values()}
    if len(widths) > 1:
        raise ConfigError(
            f"models with different numbers of features, {sorted(widths)}, cannot be compared: "
            "choose models of one architecture with --set models"
        )


def same_images(data: Mapping[Run, Dataset], count: int) -> Images:
    """Return the first test images; raise if they are not the same in all runs."""
    first: Images | None = None
    for run, dataset in data.items():
        if dataset.test is None:
            raise ConfigError(f"{run.dir} has no test images, which this analysis needs")
        images = dataset.test.select(torch.arange(min(count, len(dataset.test))))
        if first is None:
            first = images
        elif not torch.equal(first.pixels, images.pixels):
            raise ConfigError(
                f"{run.dir} has other test images than the run before it: compare runs with the "
                "same test images"
            )
    assert first is not None
    return first


@float32()
def projections(run: Run, state: State, test: Images) -> Tensor:
    """Return projections (n, k) of the test images in eval mode."""
    method = federation_setup.build_method(run.experiment, test.image_shape, run.device)
    if "projector" not in method._modules:
        raise ConfigError(
            "this method has no projector: --set what=h compares features of the backbone"
        )
    if "projector" not in state.layout.parts:
        raise ConfigError(
            "this run's models have no projector: --set what=h compares features of the backbone"
        )
    method.state.load(state.to(method.state.floats.device))
    method.eval()
    rows = []
    with torch.no_grad():
        for images in test.pixel_rows.chunks(500):
            output = method.encode(method.clean(images.to(run.device)))
            rows.append(output.z)
        return torch.cat(rows)
