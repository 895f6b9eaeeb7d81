"""Fine-tuning: the whole model learns from few labelled images.

The model of the last epoch is measured, not the best one.

protocol.py has the papers' settings. Departures: the papers state no augmentation, so images are
clean; the hidden layer of the two-layer head, whose size they do not state, is as wide as the
features and has no normalisation.

With `frozen` only the head is trained, on features computed once in evaluation mode. FedU and
FedEMA describe another protocol: the whole model is fine-tuned. Their authors' code, EasyFL, has a
third one, the protocol `easyfl`: its optimizer holds the head only, but the backbone runs in
training mode.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedssl.core.seeds import derive, generator
from fedssl.method import Normalisation
from fedssl.nets.heads import mlp
from fedssl.probes.features import as_input, embed
from fedssl.probes.protocol import Protocol

WIDE = 4096  # hidden layer of EasyFL's head


def fine_tune(
    backbone: nn.Module,
    images: Tensor,
    labels: Tensor,
    classes: int,
    *,
    normalisation: Normalisation | None,
    protocol: Protocol,
    seed: int,
    frozen: bool = False,
) -> nn.Module:
    """Return a model from images to logits (n, classes): the given backbone under a new head.

    Both are trained on uint8 images (n, C, H, W); with `frozen`, only the head is. If the protocol
    trains the head only, gradients of the backbone are switched off; its statistics still change.
    """
    device = images.device
    width: int = backbone.dim  # type: ignore[assignment]
    head = _head(width, classes, protocol, seed)
    model = nn.Sequential(backbone, head).to(device)
    if frozen:
        features = embed(backbone.eval(), images, normalisation, device)
        learner = nn.Sequential(nn.Identity(), head)
        _train(learner, features.__getitem__, labels, protocol=protocol, seed=seed)
    else:
        backbone.requires_grad_(not protocol.head_only)

        def clean_batch(index: Tensor) -> Tensor:
            return as_input(images[index], normalisation)

        _train(model, clean_batch, labels, protocol=protocol, seed=seed)
    return model.eval()


def _train(
    model: nn.Sequential,
    inputs: Callable[[Tensor], Tensor],
    labels: Tensor,
    *,
    protocol: Protocol,
    seed: int,
) -> None:
    """Train a backbone and a head in place; `inputs` maps the indices of a batch to its input."""
    stream = generator(seed, "fine-tuning")
    optimizer = _optimizer(model, protocol)
    rates = [group["lr"] for group in optimizer.param_groups]
    for epoch in range(protocol.epochs):
        # Normalisation layers too: their statistics become those of the labelled images.
        model.train(protocol.in_training_mode(epoch))
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * protocol.drop(epoch)
        order = torch.randperm(len(labels), generator=stream).to(labels.device)
        for index in order.split(protocol.batch):
            if len(index) == 1 < len(labels):
                continue  # BatchNorm has no statistics of one image; it is used in other epochs
            optimizer.zero_grad()
            F.cross_entropy(model(inputs(index)), labels[index]).backward()
            optimizer.step()


def _head(features: int, classes: int, protocol: Protocol, seed: int) -> nn.Module:
    # Layers draw their weights from torch's default generator.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(seed, "fine-tuned head"))
        if protocol.head == "linear":
            return nn.Linear(features, classes)
        if protocol.head == "wide-mlp":
            return mlp(features, WIDE, classes)
        return nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, classes))


def _optimizer(model: nn.Sequential, protocol: Protocol) -> torch.optim.Optimizer:
    """Return an optimizer of the head and, unless it is frozen, of the backbone."""
    backbone, head = model
    groups = [
        {"params": _trained(backbone), "lr": protocol.lr},
        {"params": _trained(head), "lr": protocol.head_lr or protocol.lr},
    ]
    if protocol.optimizer == "adam":
        return torch.optim.Adam(groups)
    return torch.optim.SGD(groups, momentum=0.9)


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [weight for weight in module.parameters() if weight.requires_grad]
