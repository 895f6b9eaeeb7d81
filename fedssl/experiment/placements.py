"""Choose how many clients train in parallel, and on which devices."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedssl.core.devices.free_memory import free_on_device
from fedssl.core.devices.select import cores
from fedssl.experiment.experiment import Experiment

CLIENTS_PER_GPU = 5  # in parallel: more hardly increase the throughput
# Memory for the activations of a training step, per pixel of a batch's views: a ResNet-50's.
BYTES_PER_PIXEL = 12_000


def placements(
    experiment: Experiment, image: tuple[int, int, int], devices: Sequence[torch.device]
) -> list[torch.device]:
    """Return a device for each trainer that fits in memory, cycling through the devices."""
    capacities = {}
    for device in devices:
        capacities[device] = experiment.train.workers or _capacity(experiment, image, device)
    chosen = []
    for slot in range(max(capacities.values())):
        chosen += [device for device in devices if slot < capacities[device]]
    return chosen


def _capacity(experiment: Experiment, image: tuple[int, int, int], device: torch.device) -> int:
    """Return how many clients train in parallel on a device, by cores or by a GPU's memory."""
    if device.type == "cuda":
        side = experiment.method.view_size or image[1]
        needed = BYTES_PER_PIXEL * 2 * experiment.train.batch * side * side
        return max(1, min(CLIENTS_PER_GPU, free_on_device(device) // needed))
    return max(1, cores() // experiment.train.threads)
