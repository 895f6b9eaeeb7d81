"""FedEMA by hand, on toy.py's numbers.

Round 1: both start from 10, 10, 1 and end with A 14, 12, 2 and B 18, 16, 4 (online, target,
    predictor). The means are G = 17 and q = 3.5.
Round 2: the first μ is τ = 0.7 for both, whatever the measure. Targets stay 12 and 16.
    A starts from 0.7·14 + 0.3·17 = 14.9, predictor 0.7·2 + 0.3·3.5 = 2.45, and ends with 18.9;
    B starts from 0.7·18 + 0.3·17 = 17.7, predictor 0.7·4 + 0.3·3.5 = 3.85, and ends with 25.7.
    G = (18.9 + 3·25.7)/4 = 24.
Round 3, drift: training adds the same again, so μ is 0.7 again: A starts from 0.7·18.9 + 0.3·24 =
    20.43.
Round 3, global: A is 5.1 away from G, was 3 away in round 2, so 0.7·5.1/3 > 1 and A starts from its
    own 18.9; B was 1 away and is 1.7 away: 0.7·1.7 > 1 as well. Neither uses the global model any
    more.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import toy
from factories import first_site, make_client, make_trainer, random_pixels
from toy import Federation, Numbers, starts_of_training

from fedssl.algorithms import FedAvg, FedEMA, fedema
from fedssl.core.state.tree import model

SECOND = {"A": Numbers(14.9, 12, 2.45), "B": Numbers(17.7, 16, 3.85)}


def close(found: dict[str, Numbers], expected: dict[str, Numbers]) -> bool:
    return all(found[c] == pytest.approx(expected[c], rel=1e-6) for c in expected)


@pytest.mark.parametrize(
    ("divergence", "third"), [("drift", (20.43, 0.7 * 25.7 + 0.3 * 24)), ("global", (18.9, 25.7))]
)
def test_three_rounds(divergence: str, third: tuple[float, float]) -> None:
    federation = Federation(FedEMA(divergence=divergence))
    assert federation.round("A", "B") == {"A": Numbers(10, 10, 1), "B": Numbers(10, 10, 1)}
    assert "mu" not in federation.notes["A"]
    assert close(federation.round("A", "B"), SECOND)
    assert [federation.notes[c]["mu"] for c in "AB"] == pytest.approx([0.7, 0.7])
    assert federation.held()["encoder"] == pytest.approx(24)
    starts = federation.round("A", "B")
    assert [starts[c].online for c in "AB"] == pytest.approx(third)
    assert [federation.notes[c]["mu"] for c in "AB"] == pytest.approx(
        [0.7, 0.7] if divergence == "drift" else [1, 1]
    )


def test_distances_and_lambda_are_logged() -> None:
    """drift: A 4, so λ = 0.7/4. global: 3 in backbone and in projector, so 3·√2, and λ =
    0.7/(3·√2).
    """
    for divergence, found in (("drift", 4), ("global", 3 * math.sqrt(2))):
        federation = Federation(FedEMA(divergence=divergence))
        federation.round("A", "B")
        federation.round("A", "B")
        expected = {"divergence": found, "lam": 0.7 / found, "mu": 0.7, "drift": 4}
        assert federation.notes["A"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "encoder", "predictor"),
    [
        ({"lam": 0.1}, 0.4, 0.4),
        ({"lam": 0.2}, 0.8, 0.8),
        ({"tau": 0.5}, 0.5, 0.5),
        ({"predictor_mu": 0.0}, 0.7, 0.0),
        ({"encoder_mu": 0.0}, 0.0, 0.7),
        ({"encoder_mu": 0.3, "predictor_mu": 1.0}, 0.3, 1.0),
    ],
)
def test_options(settings: dict[str, Any], encoder: float, predictor: float) -> None:
    federation = Federation(FedEMA(**settings))
    federation.round("A", "B")
    expected = Numbers(encoder * 14 + (1 - encoder) * 17, 12, predictor * 2 + (1 - predictor) * 3.5)
    assert federation.round("A", "B")["A"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("divergence", ["drift", "global"])
def test_a_client_that_was_absent_starts_from_the_global_model(divergence: str) -> None:
    """Its target too; afterwards it uses the λ it had."""
    federation = Federation(FedEMA(divergence=divergence))
    federation.round("A", "B")
    federation.round("A", "B")
    lam = federation.notes["A"]["lam"]
    federation.round("B")
    G, q = (federation.held()[k] for k in ("encoder", "predictor"))
    assert federation.round("A", "B")["A"] == pytest.approx(Numbers(G, G, q))
    federation.round("A", "B")
    assert federation.notes["A"]["lam"] == pytest.approx(lam)


def test_lambda_is_set_after_the_first_training_of_a_client_that_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A moves by 4 in round 1, pauses, and moves by 1 from round 3 on: λ = 0.7/4, not 0.7/1. Round
    4: μ = λ·1.
    """
    federation = Federation(FedEMA())
    federation.round("A", "B")
    federation.round("B")
    monkeypatch.setitem(toy.ADDED, "A", Numbers(1, 2, 1))
    federation.round("A", "B")
    federation.round("A", "B")
    assert federation.notes["A"]["lam"] == pytest.approx(0.7 / 4)
    assert federation.notes["A"]["mu"] == pytest.approx(0.7 / 4)


def test_the_server_sets_lambda_from_the_first_round_of_a_client_that_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """global: A ends round 1 with 14 where the mean is 17: λ = 0.7/(3·√2), although A pauses in
    round 2.
    """
    federation = Federation(FedEMA(divergence="global"))
    federation.round("A", "B")
    federation.round("B")
    monkeypatch.setitem(toy.ADDED, "A", Numbers(1, 2, 1))
    federation.round("A", "B")
    federation.round("A", "B")
    assert federation.notes["A"]["lam"] == pytest.approx(0.7 / (3 * math.sqrt(2)))


def test_the_server_sends_a_client_its_own_lambda_only() -> None:
    federation = Federation(FedEMA(divergence="global"))
    federation.round("A", "B")
    message = federation.algorithm.broadcast(federation.site, "A")
    assert message.keys() == {"model", "lam", fedema.LAM_FROM_FIRST_ROUND}
    assert message["lam"] == pytest.approx(0.7 / (3 * math.sqrt(2)))


@pytest.mark.parametrize("divergence", ["drift", "global"])
def test_a_run_of_an_earlier_version_keeps_its_rule(
    divergence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There, λ was set when a client first took part in two rounds in a row: for A in round 4.

    drift: A moves by 1 in round 3, so λ = 0.7/1. global: the distance to what A is sent in round 4.
    """
    federation = Federation(FedEMA(divergence=divergence))
    federation.site = {"model": federation.site["model"]}
    federation.round("A", "B")
    federation.round("B")
    monkeypatch.setitem(toy.ADDED, "A", Numbers(1, 2, 1))
    federation.round("A", "B")
    federation.round("A", "B")
    notes = federation.notes["A"]
    assert notes["lam"] == pytest.approx(
        0.7 / (1 if divergence == "drift" else notes["divergence"])
    )
    assert notes["mu"] == pytest.approx(0.7)
    assert federation.site.keys() == {"model"}


def test_a_newcomer_starts_from_the_global_model() -> None:
    federation = Federation(FedEMA())
    federation.round("A", "B")
    assert federation.start_of("C") == Numbers(17, 17, 3.5)


def test_without_lambda_it_is_fedavg() -> None:
    ours = Federation(FedEMA(lam=0))
    theirs = Federation(FedAvg(update="online", predictor="global"))
    for _ in range(3):
        assert ours.round("A", "B") == theirs.round("A", "B")
        assert ours.held() == theirs.held()


def test_a_single_client_gets_its_lambda_later() -> None:
    """A alone is the global model: its divergence is 0 and sets no λ. With B it is set as usual."""
    federation = Federation(FedEMA(divergence="global"))
    federation.round("A")
    federation.round("A")
    assert federation.notes["A"]["lam"] == federation.notes["A"]["mu"] == 0
    federation.round("A", "B")
    federation.round("A", "B")
    assert federation.notes["A"]["mu"] == pytest.approx(0.7)


@pytest.mark.parametrize("key", ["local", "reset"])
def test_with_a_target_and_a_queue(key: str) -> None:
    """A target that is restarted copies the mixed encoder, one that is local is the client's own. A
    client that was absent keeps its queue only.
    """
    algorithm = FedEMA(encoder_mu=0.5)
    trainer = make_trainer("mocov2", key=key)
    method = trainer.method
    site = first_site(algorithm, trainer)
    _, memory = algorithm.client_update(make_client(trainer, random_pixels(16), rate=0.1), site)
    online = model(memory, "online")
    kept = model(memory, "kept")
    for round, away in ((1, False), (2, True)):
        client = make_client(trainer, random_pixels(16), memory=memory, round=round)
        (now,) = starts_of_training(
            trainer, lambda client=client: algorithm.client_update(client, site)
        )
        share = 0.0 if away else 0.5
        expected = torch.lerp(
            model(site, "model").pick(("backbone",)).floats,
            online.pick(("backbone",)).floats,
            share,
        )
        assert torch.equal(now.pick(("backbone",)).floats, expected)
        target = now.pick(("target",))
        mirrored = now.pick(method.mirrored).with_prefix("target")
        if key == "reset" or away:
            assert torch.equal(
                target.pick(roles=("weight",)).floats, mirrored.pick(roles=("weight",)).floats
            )
        else:
            assert torch.equal(target.floats, kept.pick(("target",)).floats)
        assert torch.equal(now.pick(("queue",)).floats, kept.pick(("queue",)).floats)
