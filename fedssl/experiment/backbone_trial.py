"""Try a backbone that is not of this package on the image sizes of an experiment."""

from __future__ import annotations

import torch

from fedssl import nets
from fedssl.experiment.experiment import Experiment


def try_backbone(experiment: Experiment, image: tuple[int, int, int]) -> None:
    """Raise ConfigError if the backbone cannot be trained on images of (C, H, W) and their views.

    The backbones of this package need no trial.
    """
    settings = experiment.method
    if nets.is_own(settings.backbone):
        return
    channels, height, width = image
    with nets.uninitialized():
        shapes_only = nets.build(settings.backbone, channels, settings.stem, settings.norm)
        sizes = [group.size for group in settings.make(shapes_only, height).views]
    with torch.random.fork_rng(devices=[]):  # the weights drawn here are not used
        backbone = nets.build(settings.backbone, channels, settings.stem, settings.norm)
    shapes = [(height, width)]
    for size in sizes:
        shapes.append((size, size))
    nets.check_backbone(backbone, settings.backbone, channels, shapes)
