"""Fine-tuning: the whole model learns from few labelled images.

The model of the last epoch is measured, not the best one.

protocol.py has the papers' settings. Departures: the papers state no augmentation, so images are
clean; the hidden layer of the two-layer head, whose size they do not state, is as wide as the
features and has no normalisation.

With `frozen` only the head is trained, on features computed once in evaluation mode. FedU and
FedEMA describe another protocol: the whole model is fine-tuned. Their authors' code, EasyFL, has a
third one, the protocol `easyfl`: its optimizer holds the head only, but the backbone runs in
training mode.

Dec-SSL's linear probe is trained here too: its head learns from views, and its backbone runs in
training mode for an epoch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedssl.core.seeds import derive, generator
from fedssl.data.image_pool import PixelRows
from fedssl.method import Normalisation
from fedssl.nets.heads import mlp, two_layers
from fedssl.probes.features import as_input, embed
from fedssl.probes.protocol import Protocol
from fedssl.views import ViewGroup, draw, make_views

Inputs = Callable[[Tensor], Tensor]  # the indices of a batch (n,) -> its input (n, …)

WIDE = 4096  # hidden layer of EasyFL's head


def fine_tune(
    backbone: nn.Module,
    images: Tensor | PixelRows,
    labels: Tensor,
    classes: int,
    *,
    normalisation: Normalisation | None,
    protocol: Protocol,
    seed: int,
    frozen: bool = False,
    views: ViewGroup | None = None,
    penalty: float = 0.0,
) -> nn.Module:
    """Return a model from images to logits (n, classes): the given backbone under a new head.

    Both are trained on uint8 images (n, C, H, W), on the device of the labels; with `frozen`, only
    the head is. If the protocol trains the head only, gradients of the backbone are switched off;
    its statistics still change. `views`: the first view of this group takes the place of the clean
    image. penalty/2 · ‖weight‖² of the head's matrices is added to the loss.
    """
    device = labels.device
    width: int = backbone.dim  # type: ignore[assignment]
    head = _head(width, classes, protocol, seed)
    model = nn.Sequential(backbone, head).to(device)
    learner = model
    if frozen:
        features = embed(backbone.eval(), images, normalisation, device)
        learner = nn.Sequential(nn.Identity(), head)
        inputs: Inputs = features.__getitem__
    else:
        backbone.requires_grad_(not protocol.head_only)
        inputs = _image_inputs(images, normalisation, device)
        if views is not None:
            inputs = _view_inputs(views, images, normalisation, device=device, seed=seed)
    optimizer = _optimizer(learner, protocol, penalty)
    _train(learner, inputs, labels, optimizer=optimizer, protocol=protocol, seed=seed)
    return model.eval()


def _image_inputs(
    images: Tensor | PixelRows, normalisation: Normalisation | None, device: torch.device
) -> Inputs:
    """Return a function from the indices of a batch to its clean images."""
    rows = PixelRows(images) if isinstance(images, Tensor) else images

    def clean_batch(index: Tensor) -> Tensor:
        pixels = rows[index.to(rows.pool.device)].to(device)
        return as_input(pixels, normalisation)

    return clean_batch


def _view_inputs(
    group: ViewGroup,
    images: Tensor | PixelRows,
    normalisation: Normalisation | None,
    *,
    device: torch.device,
    seed: int,
) -> Inputs:
    """Return a function from the indices of a batch to new random views of its images."""
    rows = PixelRows(images) if isinstance(images, Tensor) else images
    single = ViewGroup(1, group.size, group.augment)
    stream = generator(seed, "views of a probe")
    mean: Tensor | None = None
    std: Tensor | None = None
    if normalisation is not None:
        mean = torch.tensor(normalisation.mean, device=device)
        std = torch.tensor(normalisation.std, device=device)

    def augmented_batch(index: Tensor) -> Tensor:
        pixels = rows[index.to(rows.pool.device)].to(device)
        uniforms = draw(len(index), stream, device)
        return make_views(single, pixels, uniforms, mean, std)[0]

    return augmented_batch


def _train(
    model: nn.Sequential,
    inputs: Inputs,
    labels: Tensor,
    *,
    optimizer: torch.optim.Optimizer,
    protocol: Protocol,
    seed: int,
) -> None:
    """Train a backbone and a head in place."""
    stream = generator(seed, "fine-tuning")
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
        return two_layers(features, classes)


def _optimizer(model: nn.Sequential, protocol: Protocol, penalty: float) -> torch.optim.Optimizer:
    """Return an optimizer of the head and, unless it is frozen, of the backbone."""
    backbone, head = model
    head_lr = protocol.head_lr or protocol.lr
    decay = protocol.weight_decay
    matrices = [weight for weight in _trained(head) if weight.ndim > 1]
    vectors = [weight for weight in _trained(head) if weight.ndim == 1]
    groups = [
        {"params": _trained(backbone), "lr": protocol.lr, "weight_decay": decay},
        # Decay that is not decoupled adds the penalty's gradient.
        {"params": matrices, "lr": head_lr, "weight_decay": decay + penalty},
        {"params": vectors, "lr": head_lr, "weight_decay": decay},
    ]
    if protocol.optimizer == "adam":
        return torch.optim.Adam(groups)
    return torch.optim.SGD(groups, momentum=0.9)


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [weight for weight in module.parameters() if weight.requires_grad]
