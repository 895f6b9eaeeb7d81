"""C5: ε equals published values, the closed form of composed Gaussians, and another accountant."""

from __future__ import annotations

import math

import pytest

from fedssl.engine.privacy.accountant import (
    Account,
    gaussian_epsilon,
    most_releases,
    noise_for,
)
from fedssl.topologies.topology import Star

pytestmark = pytest.mark.rows("C5")

CLIENTS = [str(i) for i in range(20)]


def everyone(round: int) -> list[str]:
    return CLIENTS


def balle_wang_delta(epsilon: float, sigma: float) -> float:
    """Return δ = Φ(1/2σ − εσ) − exp(ε)·Φ(−1/2σ − εσ): Balle & Wang, ICML 2018, Theorem 8."""

    def phi(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    first = phi(1 / (2 * sigma) - epsilon * sigma)
    return first - math.exp(epsilon) * phi(-1 / (2 * sigma) - epsilon * sigma)


def balle_wang_epsilon(sigma: float, delta: float) -> float:
    """Return ε by bisection: the second accountant."""
    low, high = 0.0, 200.0
    for _ in range(200):
        middle = (low + high) / 2
        if balle_wang_delta(middle, sigma) > delta:
            low = middle
        else:
            high = middle
    return high


@pytest.mark.parametrize(
    ("ratio", "epsilon", "delta"),
    [(1, 1, 0.12693674), (3, 1, 0.78760074), (1, 2, 0.02092364), (1 / 0.344, 16, 1e-5)],
)
def test_published_values(ratio: float, epsilon: float, delta: float) -> None:
    """From the tests of Google's accounting libraries (Python: privacy_loss_mechanism_test.py, C++:
    privacy_loss_distribution tests), for sensitivity / σ = ratio. The last σ has three digits."""
    tolerance = 1e-3 if delta > 1e-5 else 0.05
    assert gaussian_epsilon(1 / ratio, delta) == pytest.approx(epsilon, abs=tolerance)
    if delta == 1e-5:
        assert noise_for(epsilon, delta, 1) == pytest.approx(1 / ratio, abs=5e-4)


@pytest.mark.parametrize("noise", [0.8, 1.1, 5.0, 40.0])
@pytest.mark.parametrize("rounds", [1, 7, 40, 300])
@pytest.mark.parametrize("delta", [1e-5, 1e-8])
def test_composed_releases_equal_the_closed_form(noise: float, rounds: int, delta: float) -> None:
    """k releases with σ are one with σ/√k, so that the analytic Gaussian mechanism gives ε."""
    account = Account(everyone, delta)
    for round in range(rounds):
        account.charge(round, noise)
    if rounds / noise**2 < 100:  # beyond, exp(ε) overflows in the closed form
        expected = balle_wang_epsilon(noise / math.sqrt(rounds), delta)
        assert account.epsilon() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("noise", "rounds"), [(5.0, 10), (10.0, 60), (2.0, 5)])
def test_the_distribution_of_privacy_losses_gives_the_same(noise: float, rounds: int) -> None:
    """dp-accounting's general accountant composes discretised distributions: within 1e-3."""
    from dp_accounting import GaussianDpEvent
    from dp_accounting.pld import PLDAccountant

    general = PLDAccountant()
    general.compose(GaussianDpEvent(noise), rounds)
    account = Account(everyone, 1e-5)
    for round in range(rounds):
        account.charge(round, noise)
    assert account.epsilon() == pytest.approx(general.get_epsilon(1e-5), abs=1e-3)


def test_renyi_accounting_is_an_upper_bound() -> None:
    from dp_accounting import GaussianDpEvent
    from dp_accounting.rdp import RdpAccountant

    renyi = RdpAccountant()
    renyi.compose(GaussianDpEvent(5.0), 40)
    account = Account(everyone, 1e-5)
    for round in range(40):
        account.charge(round, 5.0)
    assert 0.8 * renyi.get_epsilon(1e-5) < account.epsilon() <= renyi.get_epsilon(1e-5)


def test_releases_with_different_noise() -> None:
    """1/σ² adds up: 1/3² + 1/4² = (5/12)², so that σ = 2.4."""
    account = Account(everyone, 1e-5)
    account.charge(0, 3.0)
    account.charge(1, 4.0)
    assert account.epsilon() == pytest.approx(gaussian_epsilon(2.4, 1e-5), abs=1e-9)


def test_only_rounds_that_ask_a_client_count_for_it() -> None:
    """Client a is asked in all four rounds, b and c in two each: ε is that of a."""
    plans = {0: ["b", "a"], 1: ["c", "a"], 2: ["b", "a"], 3: ["c", "a"]}
    account = Account(plans.__getitem__, 1e-5)
    for round in range(4):
        account.charge(round, 5.0)
    assert account.epsilon() == pytest.approx(gaussian_epsilon(2.5, 1e-5))
    assert most_releases(plans.__getitem__, 4) == 4


def test_no_amplification_by_sampling_is_claimed() -> None:
    """The plan is public: in a round that asks a client, its cost is that of full participation."""
    star = Star(participation=0.25)

    def plans(round: int) -> list[str]:
        return list(star.plan(CLIENTS, round, 0).site_of)

    account = Account(plans, 1e-5)
    account.charge(0, 5.0)
    assert account.epsilon() == gaussian_epsilon(5.0, 1e-5)
    most = most_releases(plans, 40)
    assert 40 * 5 / 20 <= most < 40, "at least the mean, and nobody takes part in every round"


def test_a_repeated_round_is_charged_again() -> None:
    account = Account(everyone, 1e-5)
    account.charge(0, 5.0)
    once = account.epsilon()
    account.charge(0, 5.0)
    assert account.epsilon() == pytest.approx(gaussian_epsilon(5 / math.sqrt(2), 1e-5))
    assert account.epsilon() > once


def test_epsilon_after_a_release_changes_nothing() -> None:
    account = Account(everyone, 1e-5)
    ahead = account.epsilon_after(0, 5.0)
    assert account.epsilon() == 0
    account.charge(0, 5.0)
    assert account.epsilon() == ahead


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("rounds", [1, 12, 40])
def test_computed_noise_spends_the_budget_and_no_more(epsilon: float, rounds: int) -> None:
    noise = noise_for(epsilon, 1e-5, rounds)
    account = Account(everyone, 1e-5)
    for round in range(rounds):
        account.charge(round, noise)
    assert epsilon - 1e-5 < account.epsilon() <= epsilon


def test_without_noise_epsilon_is_infinite() -> None:
    account = Account(everyone, 1e-5)
    account.charge(0, 0.0)
    assert account.epsilon() == math.inf
