"""One round of FedAvg with SimCLR in plain torch, without fedssl's engine.

    python examples/one_round.py

The demo's five clients have two kinds of clothing each. A client starts from the server's model,
trains for one epoch with SimCLR's loss, and sends its weights; the server averages them, weighted
by the number of images. Networks, views, images and seeds come from fedssl; the round itself is
below. `tests/test_examples.py` checks that `fedssl.run` ends with the same weights.
"""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedssl import nets, views
from fedssl.core.console import ignore_message
from fedssl.core.seeds import derive, generator
from fedssl.experiment.client_data import partition_data
from fedssl.experiment.experiment import Experiment, load


def contrastive_loss(z: Tensor, temperature: float) -> Tensor:
    """Return the NT-Xent loss (Chen et al. 2020) of two views z (2, B, d) of each image."""
    z = F.normalize(z, dim=-1)
    positive = (z[0] * z[1]).sum(-1) / temperature
    everything = z.flatten(0, 1)
    similarity = everything @ everything.T / temperature
    similarity.fill_diagonal_(-torch.inf)
    return similarity.logsumexp(1).mean() - positive.mean()


def train(
    model: nn.Module, images: Tensor, experiment: Experiment, stream: torch.Generator
) -> None:
    """Train one client for an epoch: batches in random order, two random views of each image."""
    settings = experiment.train
    group = views.ViewGroup(2, images.shape[-1], experiment.method.augment)
    rate = settings.rate(0, experiment.rounds)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=settings.momentum)
    batch = min(settings.batch, len(images))
    order = torch.randperm(len(images), generator=stream)
    for index in order[: len(order) // batch * batch].split(batch):
        uniforms = views.draw(2 * batch, stream, "cpu")
        pair = views.make_views(group, images[index], uniforms)
        z = model(pair.flatten(0, 1)).unflatten(0, (2, batch))
        optimizer.zero_grad()
        contrastive_loss(z, experiment.method.temperature).backward()
        optimizer.step()


def average(models: list[dict[str, Tensor]], counts: list[int]) -> dict[str, Tensor]:
    """Return the clients' mean model, weighted by image counts: FedAvg (McMahan et al. 2017)."""
    shares = torch.tensor(counts) / sum(counts)
    mean = {}
    for name, first in models[0].items():
        if first.is_floating_point():  # the others count batches
            tensors = torch.stack([model[name] for model in models])
            mean[name] = torch.tensordot(shares, tensors, dims=1)
    return mean


def one_round(experiment: Experiment) -> dict[str, Tensor]:
    """Return the server's model after the first round."""
    data = experiment.data.load(Path("data"), ignore_message)
    seen, owners = partition_data(experiment, data, ignore_message)
    torch.manual_seed(derive(experiment.seed, "weights"))
    backbone = nets.build(
        experiment.method.backbone, seen.train.image_shape[0], experiment.method.stem
    )
    projector = nets.mlp(backbone.dim, experiment.method.hidden, experiment.method.dim)
    server = nn.Sequential()
    server.add_module("backbone", backbone)
    server.add_module("projector", projector)
    uploads = []
    for client, index in owners.items():
        model = copy.deepcopy(server)
        stream = generator(experiment.seed, 0, client, "train 0")
        train(model, seen.train.pixel_rows[index], experiment, stream)
        uploads.append(model.state_dict())
    return average(uploads, [len(index) for index in owners.values()])


if __name__ == "__main__":
    sgd = {"train.optimizer": "sgd", "train.lr": 0.03}
    model = one_round(load("demo", {"rounds": 1, **sgd}))
    for name, tensor in model.items():
        print(f"{name:40} {tuple(tensor.shape)!s:18} norm {tensor.float().norm():.4f}")
