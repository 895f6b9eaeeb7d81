"""Fine-tuning: the whole model learns from few labelled images; the last epoch counts, never the best.

protocol.py has the papers' settings. Departures: the papers state no augmentation, so images are clean; the hidden
layer of the two-layer head, whose size they do not state, is as wide as the features and has no normalisation.

With `frozen` the head alone is trained, on features computed once in evaluation mode. FedU and FedEMA
describe another protocol: the whole model is fine-tuned. Their authors' code, EasyFL, has a third one: its
optimizer holds the head only, but the head is Linear-4096-BatchNorm-ReLU-Linear, the backbone runs in training
mode, so that features use batch statistics and running statistics are updated, and the best test epoch is printed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedssl.method import Normalisation
from fedssl.probes.features import as_input, embed
from fedssl.probes.protocol import Protocol
from fedssl.seeds import derive, generator


def fine_tune(
    backbone: nn.Module,
    images: Tensor,
    labels: Tensor,
    classes: int,
    normalisation: Normalisation | None,
    how: Protocol,
    seed: int,
    frozen: bool = False,
) -> nn.Module:
    """Images to logits (n, classes): the backbone itself under a new head, trained on uint8 images (n, C, H, W)."""
    device, stream = images.device, generator(seed, "fine-tuning")
    width: int = backbone.dim  # type: ignore[assignment]
    head = _head(width, classes, how, seed)
    model = nn.Sequential(backbone, head).to(device)
    features = embed(backbone.eval(), images, normalisation, device) if frozen else None
    learner = model if features is None else nn.Sequential(nn.Identity(), head)
    optimizer = _optimizer(learner, how)
    rates = [group["lr"] for group in optimizer.param_groups]
    learner.train()  # normalisation layers too: their statistics become those of the labelled images
    for epoch in range(how.epochs):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * how.drop(epoch)
        order = torch.randperm(len(images), generator=stream).to(device)
        for index in order.split(how.batch):
            if len(index) == 1 < len(images):  # which BatchNorm has no statistics of; its turn comes in other epochs
                continue
            optimizer.zero_grad()
            x = as_input(images[index], normalisation) if features is None else features[index]
            F.cross_entropy(learner(x), labels[index]).backward()
            optimizer.step()
    return model.eval()


def _head(features: int, classes: int, how: Protocol, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):  # layers draw their weights from torch's default generator
        torch.default_generator.manual_seed(derive(seed, "fine-tuned head"))
        if how.head == "linear":
            return nn.Linear(features, classes)
        return nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, classes))


def _optimizer(model: nn.Sequential, how: Protocol) -> torch.optim.Optimizer:
    """Of two groups: the backbone, and the head at a rate of its own where the protocol has one."""
    backbone, head = (list(part.parameters()) for part in model)
    groups = [{"params": backbone, "lr": how.lr}, {"params": head, "lr": how.head_lr or how.lr}]
    return torch.optim.Adam(groups) if how.optimizer == "adam" else torch.optim.SGD(groups, momentum=0.9)
