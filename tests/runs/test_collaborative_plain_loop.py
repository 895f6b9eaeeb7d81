"""Collaborative fine-tuning gives the weights of a plain loop over rounds, clients and steps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from factories import make_experiment
from torch import Tensor, nn

import fedssl
from fedssl import nets, views
from fedssl.core.seeds import derive, generator
from fedssl.data import Dataset, Images
from fedssl.evaluation.models import saved_models
from fedssl.evaluation.probe_settings import with_probe_settings
from fedssl.experiment.experiment import Experiment
from fedssl.runs.collaborative_probe import labelled_part, supervised
from fedssl.runs.local import LocalJob, train_locally
from fedssl.views import Augment

CPU = torch.device("cpu")


def experiment() -> Experiment:
    return make_experiment(
        {
            "clients": 0,
            "rounds": 1,
            "data": {"mean": [0.5] * 3, "std": [0.2] * 3},
            "partition": {"name": "natural"},
        }
    )


def images(n: int, seed: int) -> Images:
    """Return images of four classes: bright or dark in one of two channels."""
    labels = torch.arange(n) % 4
    pixels = torch.randint(100, (n, 3, 8, 8), generator=torch.Generator().manual_seed(seed))
    pixels[torch.arange(n), labels // 2] += 70 + 80 * (labels[:, None, None] % 2)
    return Images(pixels.to(torch.uint8), labels)


DATA = Dataset(images(160, 0), images(40, 1))

SIZES = {"a": 20, "b": 12}  # labelled images of two clients
OWNERS = {"a": torch.arange(100), "b": torch.arange(100, 160)}
ERROR = 1e-5  # root mean square; a step of Adam moves a weight by 1e-3


class Plain(NamedTuple):
    """Collaborative fine-tuning in plain torch."""

    head: Callable[[], nn.Module]
    augment: Augment | None  # None: clean images
    rounds: int
    local_epochs: int


def linear_head() -> nn.Module:
    return nn.Sequential(nn.Linear(512, 4))


def two_layer_head() -> nn.Module:
    return nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 4))


CROPS = Augment(crop=(0.5, 1), jitter=(0, 0, 0, 0), gray=0)
CASES: dict[str, tuple[dict[str, Any], Plain]] = {
    "ccl": ({"epochs": 2}, Plain(linear_head, CROPS, 2, 1)),
    "ccl, mlp": ({"epochs": 2, "head": "mlp"}, Plain(two_layer_head, CROPS, 2, 1)),
    "fedca": ({"protocol": "fedca", "epochs": 10}, Plain(two_layer_head, None, 2, 5)),
    "fedca, linear": (
        {"protocol": "fedca", "epochs": 5, "head": "linear"},
        Plain(linear_head, None, 1, 5),
    ),
}


def as_input(pixels: Tensor) -> Tensor:
    return (pixels / 255 - 0.5) / 0.2


def local_epochs(model: nn.Module, images: Images, plain: Plain, stream: torch.Generator) -> None:
    """Train one client: a new Adam, batches of 8 in random order, the last smaller one left out."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(plain.local_epochs):
        order = torch.randperm(len(images), generator=stream)
        for index in order[: len(order) // 8 * 8].split(8):
            uniforms = views.draw(8, stream, "cpu")
            pixels = images.pixels[index]
            x = as_input(pixels)
            if plain.augment is not None:
                group = views.ViewGroup(1, 8, plain.augment)
                numbers = (torch.full((3,), 0.5), torch.full((3,), 0.2))
                x = views.make_views(group, pixels, uniforms, *numbers)[0]
            optimizer.zero_grad()
            F.cross_entropy(model(x), images.labels[index]).backward()
            optimizer.step()


def plain_fine_tuning(weights: dict[str, Tensor], data: Dataset, plain: Plain) -> nn.Module:
    """Return the server's model: clients' means of parameters and statistics, 20 to 12."""
    torch.manual_seed(derive(0, "weights"))
    backbone = nets.CNN()  # drawn first, then overwritten
    backbone.load_state_dict(weights)
    server = nn.Sequential(backbone, plain.head())
    assert data.owners is not None
    for number in range(plain.rounds):
        mean: dict[str, Tensor] = {}
        for client, index in data.owners.items():
            model = copy.deepcopy(server).train()
            stream = generator(0, number, client, "train 0")
            local_epochs(model, data.train.select(index), plain, stream)
            for name, tensor in model.state_dict().items():
                mean[name] = mean.get(name, 0) + tensor * SIZES[client] / 32
        server.load_state_dict(mean)
    return server.eval()


@pytest.mark.parametrize("case", CASES)
def test_the_same_weights_as_a_plain_loop(case: str, tmp_path: Path) -> None:
    """A fifth of 100 and of 60 images: batches of 8 make 2 steps an epoch, and 1."""
    settings, plain = CASES[case]
    torch.manual_seed(3)
    weights = nets.CNN().state_dict()
    file = tmp_path / "b.safetensors"
    nets.save_backbone(weights, file, {})
    chosen = with_probe_settings(
        experiment(),
        "collaborative",
        {"labels": 0.2, "batch": 8, **settings},
    )
    data = labelled_part(chosen, DATA, OWNERS)
    assert data.owners is not None
    assert {client: len(index) for client, index in data.owners.items()} == SIZES
    tuned = supervised(chosen, file, 4)
    train_locally(LocalJob(tuned, tmp_path / "run", data, None, CPU, title="", quiet=True))
    found = saved_models(tuned, tmp_path / "run", print)["global"].tensors()
    expected = plain_fine_tuning(weights, data, plain).state_dict()
    names = {"0": "backbone", "1": "projector"}
    compared = 0
    for name, tensor in expected.items():
        part, _, rest = name.partition(".")
        if tensor.is_floating_point():
            difference = found[f"{names[part]}.{rest}"] - tensor
            # Adam turns rounding errors of a few tiny gradients into steps: not all are equal.
            assert difference.square().mean().sqrt() < ERROR, name
            compared += 1
    assert compared == len([name for name in found if "num_batches" not in name])


def test_the_score_is_that_of_the_plain_loop(tmp_path: Path) -> None:
    """The probe as a whole: FedCA's protocol gives the predictions of the plain loop."""
    data = Dataset(DATA.train, DATA.test, OWNERS)
    chosen = experiment()
    run = fedssl.run(chosen, tmp_path / "run", "cpu", dataset=data, quiet=True)
    settings, plain = CASES["fedca"]
    settings = {"labels": 0.2, "batch": 8, **settings}
    score = run.evaluate("collaborative", **settings)
    part = labelled_part(with_probe_settings(chosen, "collaborative", settings), data, OWNERS)
    weights = run.backbone().state_dict()
    model = plain_fine_tuning(weights, part, plain)
    assert DATA.test is not None
    predictions = model(as_input(DATA.test.pixels)).argmax(1)
    assert score["global"] == 100 * (predictions == DATA.test.labels).float().mean()
    assert score.labelled == 32
