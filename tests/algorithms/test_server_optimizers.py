"""FedAvgM and FedAdam by hand, on toy.py's numbers.

Training adds 4 to A's encoder and 8 to B's, 1 and 3 to their predictors; B has three times as many
images. So the mean is always (4 + 3·8)/4 = 7 and (1 + 3·3)/4 = 2.5 ahead of what was sent: Δ = 7
and 2.5 in every round. The global model starts with 10 and 1.

FedAvgM, lr = ½, β = ½: v = 7, then ½·7 + 7 = 10.5; the encoder is 10 + 3.5 = 13.5, then 13.5 + 5.25
    = 18.75. Predictor: v = 2.5, then 3.75; 1 + 1.25 = 2.25, then 2.25 + 1.875 = 4.125.
FedAdam, lr = 1, β₁ = ½, β₂ = ¾, τ = 1: m = 3.5, then ½·3.5 + ½·7 = 5.25; v = ¾·1 + ¼·49 = 13, then
    ¾·13 + ¼·49 = 22; the encoder is 10 + 3.5/(√13 + 1), and then 5.25/(√22 + 1) more.
"""

from __future__ import annotations

import math

import pytest
import torch
from factories import first_site, make_client, make_trainer, random_pixels
from toy import Federation, Numbers

from fedssl.algorithm import Algorithm, Upload
from fedssl.algorithms import FedAdam, FedAvg, FedAvgM
from fedssl.core.errors import ConfigError
from fedssl.core.state.mean import Mean
from fedssl.core.state.state import State
from fedssl.core.state.tree import model, tensor
from fedssl.experiment.experiment import Experiment
from fedssl.training.trainer import Trainer

BY_HAND = [
    (FedAvgM(lr=0.5, momentum=0.5), [13.5, 18.75], [2.25, 4.125]),
    (FedAvgM(lr=1, momentum=0.5), [17.0, 27.5], [3.5, 7.25]),
    (
        FedAdam(lr=1, beta1=0.5, beta2=0.75, tau=1),
        [
            10 + 3.5 / (math.sqrt(13) + 1),
            10 + 3.5 / (math.sqrt(13) + 1) + 5.25 / (math.sqrt(22) + 1),
        ],
        # v = ¾ + 2.5²/4 = 2.3125, then 1.734375 + 1.5625 = 3.296875; m = 1.25, then 1.875
        [
            1 + 1.25 / (math.sqrt(2.3125) + 1),
            1 + 1.25 / (math.sqrt(2.3125) + 1) + 1.875 / (math.sqrt(3.296875) + 1),
        ],
    ),
]


@pytest.mark.parametrize(("algorithm", "encoder", "predictor"), BY_HAND)
def test_two_rounds_by_hand(
    algorithm: Algorithm, encoder: list[float], predictor: list[float]
) -> None:
    federation = Federation(algorithm)
    for r, statistic, counter in ((0, 4, 2), (1, 8, 4)):
        starts = federation.round("A", "B")
        expected = Numbers(10, 10, 1) if r == 0 else Numbers(encoder[0], 12, predictor[0])
        assert starts["A"] == pytest.approx(expected)
        assert federation.held() == pytest.approx(
            {"encoder": encoder[r], "predictor": predictor[r]}
        )
        t = model(federation.site, "model").tensors()
        assert t["backbone.norm.running_mean"] == statistic  # the mean, as in FedAvg
        assert t["backbone.norm.num_batches_tracked"] == counter


def test_a_target_that_is_averaged_too_takes_the_mean() -> None:
    ours, theirs = (
        Federation(a) for a in (FedAvgM(lr=0.5, aggregate="both"), FedAvg(aggregate="both"))
    )
    for federation in (ours, theirs):
        federation.round("A", "B")
    assert ours.held() == {"encoder": 13.5, "predictor": 2.25, "target": 15}
    assert theirs.held()["target"] == 15


@pytest.mark.parametrize("algorithm", [FedAvgM(), FedAdam()])
def test_the_optimizers_state_is_not_sent(algorithm: Algorithm) -> None:
    federation = Federation(algorithm)
    before = dict(federation.site)
    copies = {key: v.clone() for key, v in before.items()}  # type: ignore[union-attr]
    assert (
        algorithm.broadcast(federation.site, "A").keys()
        == algorithm.upload_schema(federation.method).keys()
        == {"model"}
    )
    federation.round("A", "B")
    assert federation.site.keys() == before.keys()
    for key, copy in copies.items():  # the site before was not changed in place
        now = before[key]
        same = (
            torch.equal(now.floats, copy.floats)
            if isinstance(now, State)
            else torch.equal(now, copy)
        )
        assert same, key
    rows = [value for value in federation.site.values() if isinstance(value, torch.Tensor)]
    # Encoder twice, predictor, and a norm layer's weight and bias, without statistics and counters.
    assert {row.shape for row in rows} == {(5,)}


def _uploads(trainer: Trainer, count: int, round: int) -> list[Upload]:
    first = trainer.method.state.pick(trainer.method.online)
    found = []
    for k in range(count):
        noise = torch.randn(
            len(first.floats), generator=torch.Generator().manual_seed(10 * round + k)
        )
        state = State(first.layout, first.floats + noise * 10.0 ** (k - 2), first.counts + k)
        found.append(Upload(str(k), 1.0 + k, {"model": state}))
    return found


@pytest.mark.parametrize("name", ["simclr", "byol"])
def test_without_momentum_it_is_fedavg_to_the_bit(name: str) -> None:
    trainer = make_trainer(name)
    home = make_client(trainer, random_pixels(0), id="home")
    plain = FedAvg()
    ours = FedAvgM(momentum=0, lr=1)
    expected = plain.init(home)
    site = ours.init(home)
    for r in range(3):
        expected = plain.merge(expected, iter(_uploads(trainer, 4, r)), Mean)
        site = ours.merge(site, iter(_uploads(trainer, 4, r)), Mean)
        assert torch.equal(model(site, "model").floats, model(expected, "model").floats)
        assert torch.equal(model(site, "model").counts, model(expected, "model").counts)
    site, expected = (
        a.merge(s, iter(_uploads(trainer, 4, 3)), Mean)
        for a, s in ((FedAvgM(), site), (plain, expected))
    )
    assert not torch.equal(model(site, "model").floats, model(expected, "model").floats)


def test_adam_starts_from_tau_squared_and_moves_by_the_rate() -> None:
    """In the first round m/(√v + τ) is 0.1·Δ/(√(0.99·τ² + 0.01·Δ²) + τ): for a large Δ its sign,
    for a small one 0.1·Δ/(1.995·τ).
    """
    trainer = make_trainer("simclr")
    algorithm = FedAdam()
    site = first_site(algorithm, trainer)
    assert torch.equal(tensor(site, "second"), torch.full_like(tensor(site, "first"), 1e-6))
    for size, step in ((100.0, 0.01), (1e-5, 0.01 * 0.1 * 1e-5 / (1e-3 * (math.sqrt(0.99) + 1)))):
        first = model(site, "model")
        upload = Upload("a", 1.0, {"model": State(first.layout, first.floats + size, first.counts)})
        moved = model(algorithm.merge(site, iter([upload]), Mean), "model")
        n = len(tensor(site, "first"))
        went = (moved.floats.double() - first.floats.double())[:n]
        assert went.tolist() == pytest.approx([step] * n, rel=0.02 if size > 1 else 0.2)
        assert torch.allclose(moved.floats[n:], first.floats[n:] + size)  # statistics


@pytest.mark.parametrize("name", ["fedavgm", "fedadam"])
def test_they_need_a_server(name: str) -> None:
    values = {
        "clients": 3,
        "data": "given",
        "method": {"name": "simclr", "backbone": "cnn"},
        "algorithm": name,
    }
    Experiment.from_dict(values).check()
    with pytest.raises(
        ConfigError, match=f'algorithm "{name}" needs a server; topology "cycle" has none'
    ):
        Experiment.from_dict(values | {"topology": "cycle"}).check()
