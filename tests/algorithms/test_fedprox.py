"""FedProx: a pull towards the model that was sent."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from factories import make_client, make_trainer, random_pixels

from fedssl.algorithms import FedAvg, FedProx
from fedssl.core.state.state import State
from fedssl.core.state.tree import model
from fedssl.method import Batch, Constants, Method, Output
from fedssl.training.client import Client
from fedssl.training.trainer import Trainer


class Pulled(FedProx):
    """FedProx without the method's loss."""

    def objective(
        self, method: Method, batch: Batch, out: Output, constants: Constants
    ) -> torch.Tensor:
        return super().objective(method, batch, out, constants) - method.loss(out, constants)


def _trained(
    algorithm: FedAvg, trainer: Trainer, sent: State, lr: float = 0.1
) -> tuple[State, float]:
    client = make_client(trainer, random_pixels(16), lr=lr)
    upload, _ = algorithm.client_update(client, {"model": sent})
    return model(upload, "model"), client.metrics[0].loss


@pytest.mark.parametrize("name", ["simclr", "byol"])
def test_the_term_is_half_mu_times_the_squared_distance(name: str) -> None:
    """The reference is the model that was sent; then 0.5 is added to each resident parameter. The
    first loss is μ/2 · n · 0.25 over the n parameters that are sent: those of norm layers are
    included, statistics and target are not.
    """
    trainer = make_trainer(name, {"batch": 16, "lr": 0.1})
    sent = trainer.method.state.pick(trainer.method.online)

    class Moved(Pulled):
        def constants(self, client: Client, message: Any) -> Constants:
            constants = super().constants(client, message)
            client.method.parameter_row(client.method.online).add_(0.5)
            return constants

    _, loss = _trained(Moved(mu=0.6), trainer, sent)
    n = trainer.method.parameter_row(trainer.method.online).numel()
    assert loss == pytest.approx(0.3 * n * 0.25, rel=1e-4)


def test_a_stronger_pull_keeps_clients_nearer() -> None:
    distances = []
    for mu in (0.0, 1.0, 8.0):
        trainer = make_trainer("simclr", {"epochs": 5})
        sent = trainer.method.state.pick(trainer.method.online)
        distances.append(_trained(FedProx(mu=mu), trainer, sent, 0.01)[0].distance(sent).item())
    assert distances[0] > 1.1 * distances[1] > 1.21 * distances[2] > 0


def test_a_predictor_that_stays_local_is_not_pulled() -> None:
    trainer = make_trainer("byol")
    client = make_client(trainer, random_pixels(16))
    sent = {"model": trainer.method.state.pick(trainer.method.online)}
    for predictor in ("global", "local"):
        constants = FedProx(predictor=predictor).constants(client, sent)
        assert any("predictor" in name for name in constants) == (predictor == "global")


def test_without_a_pull_it_is_fedavg() -> None:
    rows = []
    for algorithm in (FedProx(mu=0), FedAvg()):
        trainer = make_trainer("byol")
        rows.append(
            _trained(algorithm, trainer, trainer.method.state.pick(trainer.method.online))[0].floats
        )
    assert torch.equal(*rows)
