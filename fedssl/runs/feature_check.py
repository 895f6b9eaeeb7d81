"""Check that merged models produce finite features, before they are broadcast or exported."""

from __future__ import annotations

import torch
from torch import Tensor

from fedssl.algorithm import Sites
from fedssl.core.devices.precision import float32
from fedssl.core.errors import RunError
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, to_device
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.federation_setup import normalisation
from fedssl.experiment.trained_backbone import TrainedBackbones
from fedssl.nets import Backbone
from fedssl.probes import embed

NOISE_IMAGES = 2


class FeatureCheck:
    """Run the models of a site on a few synthetic images, in eval mode."""

    def __init__(
        self, experiment: Experiment, image: tuple[int, int, int], device: torch.device
    ) -> None:
        self._algorithm = experiment.algorithm
        self._device = device
        self._images = probe_batch(image)
        self._normalisation = normalisation(experiment, image[0])
        self._backbones = TrainedBackbones(experiment, image[0])
        self._backbone: Backbone | None = None  # built when first needed, then reused

    @float32()
    def __call__(self, site: Tree) -> str | None:
        """Return the problem of the first model whose features are not finite; None if all are."""
        for name, state in self._algorithm.export(site).items():
            features = embed(self._load(state), self._images, self._normalisation, self._device)
            # Squared norms: probes normalise features, and the norm overflows before any feature.
            if not bool(torch.isfinite(features.square().sum(1)).all()):
                return f'features of model "{name}" are not finite'
        return None

    def _load(self, state: State) -> Backbone:
        """Return the backbone with the weights of a model."""
        if self._backbone is None:
            self._backbone = self._backbones.module(state).to(self._device)
        else:
            self._backbone.load_state_dict(self._backbones.tensors(state))
        return self._backbone


def check_features(
    experiment: Experiment, sites: Sites, image: tuple[int, int, int], device: torch.device
) -> None:
    """Raise RunError for merged models with features that are not finite.

    Earlier versions saved such models.
    """
    if not experiment.topology.merges:
        return
    find_problem = FeatureCheck(experiment, image, device)
    for site, tree in sites.items():
        problem = find_problem(to_device(tree, device))
        if problem is not None:
            raise RunError(
                f"{site}: {problem}, so no backbone was exported. Start again with a lower train.lr"
            )


def probe_batch(image: tuple[int, int, int]) -> Tensor:
    """Return a black, a white and random images (4, C, H, W) uint8."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (NOISE_IMAGES, *image), dtype=torch.uint8, generator=generator)
    black = torch.zeros(1, *image, dtype=torch.uint8)
    return torch.cat([black, 255 - black, noise])
