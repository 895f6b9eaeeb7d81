"""The models that analyses look at, and what they make of the same test images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedssl import assemble
from fedssl.analysis.analysis import Analysis, run_names
from fedssl.analysis.local import Read, local_models
from fedssl.data import Dataset, Images
from fedssl.data.progress import Say, meter
from fedssl.errors import ConfigError
from fedssl.evaluate import Evaluation
from fedssl.numerics import float32
from fedssl.run import Run
from fedssl.tree import State


class Model(NamedTuple):
    """One model, made when it is asked for."""

    run: Run
    state: Callable[[], State]


def reader(say: Say) -> Read:
    """Reads a run's images once, however often they are asked for."""
    return cache(partial(Run.data, say=say))


class OfModels(Analysis):
    """An analysis of models: those of the newest checkpoint, or what clients would make of them."""

    local: bool = False  # each client trains from the newest checkpoint as in its last round; these are the models
    rate: float | None = Field(None, gt=0)  # the learning rate of that training; None: that of the round
    models: tuple[str, ...] = ()  # only those of these names; none: all

    def chosen(self, runs: Sequence[Run], read: Read, say: Say, fewest: int = 1) -> dict[str, Model]:
        """By name; with several runs, the run's name is before the model's. Images are read for local models only."""
        found: dict[str, Model] = {}
        for name, run in zip(run_names(runs), runs, strict=True):
            every = _models(run, self.local, self.rate, read, say)
            before = f"{name}/" if len(runs) > 1 else ""
            found |= {f"{before}{model}": Model(run, make) for model, make in every.items()}
        if missing := [name for name in self.models if name not in found]:
            raise ConfigError(f'there is no model "{missing[0]}"; there are: {", ".join(found)}')
        found = {name: model for name, model in found.items() if not self.models or name in self.models}
        if len(found) < fewest:
            why = "--set local=true has each client train once more and compares those, or give several runs"
            raise ConfigError(f"there is only one model, {', '.join(found)}, and nothing to compare it with: {why}")
        return found


class OfFeatures(OfModels):
    """An analysis of what models make of test images."""

    images: int = Field(1000, gt=1)  # test images, the first so many
    what: Literal["h", "z"] = "h"  # features of the backbone, or projections

    def features(self, models: Mapping[str, Model], read: Read, say: Say) -> tuple[dict[str, Tensor], Images]:
        """Unit features (n, d) of the same n test images under each model, and the images."""
        data = {run: read(run) for run in dict.fromkeys(model.run for model in models.values())}
        test = same_images(data, self.images)
        found = {}
        with meter("computing features", len(models), say) as advance:
            for name, (run, state) in models.items():
                evaluation = Evaluation(run.experiment, data[run], run.device)
                made = evaluation.features(state(), test.held) if self.what == "h" else projections(run, state(), test)
                found[name] = F.normalize(made.double().cpu(), dim=1)
                advance(1)
        return found, test


def _models(run: Run, local: bool, rate: float | None, read: Read, say: Say) -> dict[str, Callable[[], State]]:
    models = local_models(run, read, say, rate) if local else run.models()
    if not models:
        raise ConfigError(f"{run.dir} has no model yet: clients have theirs when they have trained")
    return {name: partial(models.__getitem__, name) for name in models}


def same_images(data: Mapping[Run, Dataset], most: int) -> Images:
    """The first test images, which must be the same in all runs."""
    found: Images | None = None
    for run, each in data.items():
        if each.test is None:
            raise ConfigError(f"{run.dir} has no test images to look at models with")
        some = each.test.select(torch.arange(min(most, len(each.test))))
        if found is not None and not torch.equal(found.pixels, some.pixels):
            raise ConfigError(f"{run.dir} has other test images than the run before it: they cannot be compared")
        found = found or some
    assert found is not None
    return found


@float32()
def projections(run: Run, state: State, test: Images) -> Tensor:
    """Projections (n, k) in eval mode."""
    method = assemble.build_method(run.experiment, test.image, run.device)
    if "projector" not in method._modules:
        raise ConfigError("this method has no projector: --set what=h compares features of the backbone")
    if "projector" not in state.layout.parts:
        raise ConfigError("this run's models have no projector: --set what=h compares features of the backbone")
    method.state.load(state.to(method.state.floats.device))
    method.eval()
    with torch.no_grad():
        return torch.cat([method.encode(method.clean(x.to(run.device))).z for x in test.held.chunks(500)])
