"""FedU by hand, on toy.py's numbers.

Round 1: both start from 10, 10, 1 and end with A 14, 12, 2 and B 18, 16, 4 (online, target,
    predictor). The means are 17 and 3.5. Over the backbone's one layer A has moved by 4, B by 8;
    squared, over backbone and projector, A 2·4² = 32 and B 2·8² = 128.
Round 2: both take the encoder 17 and keep their targets 12 and 16.
    With μ between A's divergence and B's, A takes the predictor 3.5 and B keeps its own, 4.
"""

from __future__ import annotations

import math

import pytest
from toy import Federation, Numbers

from fedssl.algorithms import FedAvg, FedU


@pytest.mark.parametrize(
    ("divergence", "mu", "found"), [("layer-mean", 5, (4, 8)), ("squared-norm", 100, (32, 128))]
)
def test_a_client_with_a_large_divergence_keeps_its_predictor(
    divergence: str, mu: float, found: tuple[float, float]
) -> None:
    federation = Federation(FedU(mu=mu, divergence=divergence))
    assert federation.round("A", "B") == {"A": Numbers(10, 10, 1), "B": Numbers(10, 10, 1)}
    assert [federation.notes[c]["own_predictor"] for c in "AB"] == [0, 0]
    assert [federation.notes[c]["divergence"] for c in "AB"] == pytest.approx(found)
    assert federation.held() == {"encoder": 17, "predictor": 3.5}
    assert federation.round("A", "B") == {"A": Numbers(17, 12, 3.5), "B": Numbers(17, 16, 4)}
    assert [federation.notes[c]["own_predictor"] for c in "AB"] == [0, 1]
    assert federation.start_of("C") == Numbers(
        *(federation.held()[k] for k in ("encoder", "encoder", "predictor"))
    )


def test_the_threshold_itself_is_too_far() -> None:
    """μ = 4: A has moved by exactly that much."""
    federation = Federation(FedU(mu=4))
    federation.round("A", "B")
    assert federation.round("A", "B")["A"].predictor == 2


@pytest.mark.parametrize(("mu", "predictor"), [(math.inf, "global"), (0.0, "local")])
def test_extremes_are_the_fixed_policies(mu: float, predictor: str) -> None:
    """Except at the server: FedU averages predictors even if no client uses the mean."""
    ours = Federation(FedU(mu=mu))
    theirs = Federation(FedAvg(predictor=predictor))
    for _ in range(3):
        assert ours.round("A", "B") == theirs.round("A", "B")
        assert ours.held()["encoder"] == theirs.held()["encoder"]


def test_it_needs_a_predictor() -> None:
    assert FedU().requires == {"predictor"}
