"""The backbone of a model as a plain module, and as tensors under the plain backbone's names.

The models of a run with adapters have only the weights that are trained; the frozen ones are those
of `method.init`. Here both are merged.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from fedssl import nets
from fedssl.core.state.state import State
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.federation_setup import build_backbone
from fedssl.experiment.init_file import load_init
from fedssl.nets.adapters import adapted_layers, merge_adapters


class TrainedBackbones:
    """Makes the backbones of an experiment's models; frozen weights are read once."""

    def __init__(self, experiment: Experiment, channels: int) -> None:
        self._experiment = experiment
        self._channels = channels

    def tensors(self, state: State) -> dict[str, Tensor]:
        """Return the weights of a model's backbone, with adapters merged, by their names there."""
        trained = state.pick(("backbone",)).without_prefix("backbone").tensors()
        adapters = self._experiment.method.adapters
        # The untrained models that a run is compared with have no adapters.
        if adapters is None or not adapted_layers(trained):
            return trained
        return merge_adapters(self._frozen, trained, adapters.scale)

    def module(self, state: State) -> nets.Backbone:
        """Return a model's backbone on the CPU, in eval mode."""
        backbone = self._build()
        backbone.load_state_dict(self.tensors(state))
        return backbone.eval()

    def _build(self) -> nets.Backbone:
        with torch.random.fork_rng(devices=[]):  # building draws weights, which are overwritten
            return build_backbone(self._experiment, self._channels)

    @cached_property
    def _frozen(self) -> dict[str, Tensor]:
        """The weights of the backbone before training."""
        backbone = self._build()
        load_init(backbone, self._experiment.method)
        return dict(backbone.state_dict())
