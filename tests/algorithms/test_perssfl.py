"""Per-SSFL by hand, on toy.py's numbers. A client trains twice a round: a copy of the global model,
then its own.

Round 1: both trainings start from 10, 10, 1 (online, target, predictor) and end with A 14, 12, 2
    and B 18, 16, 4. The server's means of the copies are 17 and 3.5.
Round 2: copies start from the means with the copies' targets, A 17, 12, 3.5 and B 17, 16, 3.5.
    Personal models continue from where they were, A 14, 12, 2 and B 18, 16, 4, and end with A 18,
    14, 3 and B 26, 22, 7. The server's means are (21 + 3·25)/4 = 24 and (4.5 + 3·6.5)/4 = 6.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from factories import first_site, make_client, make_trainer, random_pixels, train_rounds
from toy import Federation, Numbers, starts_of_training

from fedssl.algorithm import Algorithm
from fedssl.algorithms import FedAvg, PerSSFL
from fedssl.core.state.layout import PARAMETERS
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree, model
from fedssl.engine.checkpoints.client_memory import ClientMemory
from fedssl.engine.federate import Round
from fedssl.method import Batch, Constants, Method, Output
from fedssl.topologies.topology import SERVER
from fedssl.training.trainer import Trainer


def test_two_rounds_by_hand() -> None:
    federation = Federation(PerSSFL())
    assert federation.personal("A") is None
    federation.round("A", "B")
    assert federation.started == {"A": [Numbers(10, 10, 1)] * 2, "B": [Numbers(10, 10, 1)] * 2}
    assert federation.held() == {"encoder": 17, "predictor": 3.5}
    federation.round("A", "B")
    assert federation.started == {
        "A": [Numbers(17, 12, 3.5), Numbers(14, 12, 2)],
        "B": [Numbers(17, 16, 3.5), Numbers(18, 16, 4)],
    }
    assert federation.notes == {
        "A": {"own_loss": 14},
        "B": {"own_loss": 18},
    }  # toy.py's loss: where training started
    assert federation.held() == {"encoder": 24, "predictor": 6}
    for client, w, q in (("A", 18, 3), ("B", 26, 7)):
        own = federation.personal(client)
        assert own is not None
        assert (own.tensors()["backbone.w"], own.tensors()["predictor.w"]) == (w, q)
        assert own.layout.parts == ("backbone", "projector", "predictor")
    assert federation.personal("C") is None
    exported = federation.algorithm.export(federation.site)
    assert {name: state.tensors()["backbone.w"].item() for name, state in exported.items()} == {
        "global": 24
    }


def _federated(
    algorithm: Algorithm, trainer: Trainer, **options: Any
) -> tuple[list[Round], ClientMemory]:
    memory = ClientMemory()
    shards = {"a": random_pixels(16, 0), "b": random_pixels(24, 1)}
    done = train_rounds(algorithm, shards, trainer, memory=memory, **options)
    return done, memory


@pytest.mark.parametrize("name", ["simclr", "byol", "mocov2"])
def test_the_global_model_is_fedavgs(name: str) -> None:
    """To the bit, and so is the log: training the personal model does not change the copy."""
    (ours, memory), (theirs, expected) = (
        _federated(algorithm, make_trainer(name)) for algorithm in (PerSSFL(lam=0.5), FedAvg())
    )
    assert torch.equal(*(model(done[-1].sites[SERVER], "model").floats for done in (ours, theirs)))
    for client, mine, other in zip("ab", ours[-1].reports, theirs[-1].reports, strict=True):
        assert mine.metrics is not None
        assert other.metrics is not None
        assert mine.metrics._replace(seconds=0) == other.metrics._replace(seconds=0)
        assert mine.notes["own_loss"] != mine.metrics.loss
        kept = [m.latest(client).get("kept") for m in (memory, expected)]
        if isinstance(kept[0], State) and isinstance(kept[1], State):
            assert torch.equal(kept[0].floats, kept[1].floats)
            assert not torch.equal(model(memory.latest(client), "own_kept").floats, kept[0].floats)
        else:
            assert name == "simclr"


@pytest.mark.parametrize("name", ["simclr", "byol"])
def test_the_pull_is_half_lambda_times_the_squared_distance(name: str) -> None:
    """A client's own model is 0.5 away from what is sent in each of its n parameters, and its rate
    is 0: its loss with λ = 0.6 is that with λ = 0 and 0.3 · n · 0.25 more. Statistics and target
    are not pulled.
    """
    trainer = make_trainer(name, {"batch": 16})
    losses = []
    method = trainer.method
    sent = method.state.pick(method.online)
    moved = sent.clone()
    for stretch in moved.float_slices(PARAMETERS):
        stretch.add_(0.5)
    for lam in (0.0, 0.6):
        client = make_client(trainer, random_pixels(16), memory={"own": moved}, rate=0.0)
        _, memory = PerSSFL(lam=lam).client_update(client, {"model": sent})
        losses.append(client.notes["own_loss"])
        assert client.notes["own_loss"] == client.metrics[1].loss
        assert torch.equal(
            *(s.pick(roles=PARAMETERS).floats for s in (model(memory, "own"), moved))
        )
    n = sent.layout.pick(roles=PARAMETERS).floats
    assert losses[1] - losses[0] == pytest.approx(0.3 * n * 0.25, rel=1e-4)


@pytest.mark.parametrize("name", ["byol", "mocov2"])
def test_copy_and_personal_model_have_separate_targets_and_queues(name: str) -> None:
    """The copy continues from the copy's parts, and the personal model from its own."""
    algorithm = PerSSFL()
    trainer = make_trainer(name)
    site = first_site(algorithm, trainer)
    _, memory = algorithm.client_update(make_client(trainer, random_pixels(16), rate=0.1), site)

    copy, own = starts_of_training(
        trainer,
        lambda: algorithm.client_update(
            make_client(trainer, random_pixels(16), memory=memory, round=1, rate=0.1), site
        ),
    )
    for state, online, kept in (
        (copy, model(site, "model"), "kept"),
        (own, model(memory, "own"), "own_kept"),
    ):
        assert torch.equal(state.pick(trainer.method.online).floats, online.floats)
        assert torch.equal(
            state.pick(trainer.method.persistent_parts).floats, model(memory, kept).floats
        )
    assert not torch.equal(model(memory, "kept").floats, model(memory, "own_kept").floats)


def test_one_step_of_the_pull_alone() -> None:
    """Without the method's loss, decay and momentum a step is v ← v − rate·λ·(v − w): 1 + 0.5 −
    0.2·0.6·0.5 = 1.44.
    """

    class Pulled(PerSSFL):
        def pulled(
            self, method: Method, batch: Batch, out: Output, constants: Constants
        ) -> torch.Tensor:
            return super().pulled(method, batch, out, constants) - method.loss(out, constants)

    trainer = make_trainer("simclr", {"batch": 16, "weight_decay": 0.0, "momentum": 0.0})
    sent = trainer.method.state.pick(trainer.method.online)
    sent.floats.fill_(1.0)
    own = sent.clone()
    own.floats.add_(0.5)
    client = make_client(trainer, random_pixels(16), memory={"own": own}, rate=0.2)
    _, memory = Pulled(lam=0.6).client_update(client, {"model": sent})
    parameters = model(memory, "own").pick(roles=PARAMETERS).floats
    torch.testing.assert_close(parameters, torch.full_like(parameters, 1.44))


def test_a_stronger_pull_keeps_own_models_nearer() -> None:
    """Nearer to the model received in the round, which is the result of the round before."""
    distances = []
    for lam in (0.0, 0.5, 2.0):
        done, memory = _federated(
            PerSSFL(lam=lam), make_trainer("simsiam", {"epochs": 4}), rounds=3, rate=0.02
        )
        sent = model(done[1].sites[SERVER], "model")
        distances.append(model(memory.latest("a"), "own").distance(sent).item())
    assert distances[0] > 1.2 * distances[1] > 1.44 * distances[2] > 0


def test_messages_and_memories_are_never_changed() -> None:
    algorithm = PerSSFL()
    trainer = make_trainer("mocov2")
    trees: list[Tree] = [first_site(algorithm, trainer)]
    for round in range(2):
        memory = trees[-1] if round else {}
        trees += algorithm.client_update(
            make_client(trainer, random_pixels(16), memory=memory, round=round, rate=0.1), trees[0]
        )
        copies = [{key: model(tree, key).clone() for key in tree} for tree in trees]
    algorithm.client_update(
        make_client(trainer, random_pixels(16), memory=trees[-1], round=2, rate=0.1), trees[0]
    )
    assert len(trees) == 5
    for tree, copied in zip(trees, copies, strict=True):
        assert all(
            torch.equal(model(tree, key).floats, copy.floats) for key, copy in copied.items()
        )


def test_a_personal_model_that_fails_does_not_affect_the_copy() -> None:
    """The upload is FedAvg's to the bit; the personal model is dropped and initialised in the next
    round.
    """

    class Broken(PerSSFL):
        def pulled(
            self, method: Method, batch: Batch, out: Output, constants: Constants
        ) -> torch.Tensor:
            return super().pulled(method, batch, out, constants) * torch.inf

    trainer = make_trainer("byol")
    site = first_site(FedAvg(), trainer)
    clients = [make_client(trainer, random_pixels(16), rate=0.1) for _ in range(2)]
    ours, memory = Broken().client_update(clients[0], site)
    theirs, _ = FedAvg().client_update(clients[1], site)
    assert torch.equal(model(ours, "model").floats, model(theirs, "model").floats)
    assert clients[0].notes == {"own_failed": 1}
    assert Broken().personal(site, memory) is None
    _, healed = PerSSFL().client_update(
        make_client(trainer, random_pixels(16), memory=memory, round=1, rate=0.1), site
    )
    assert PerSSFL().personal(site, healed) is not None
