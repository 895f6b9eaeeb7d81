"""How much privacy the releases of a run have cost the client that they cost most.

A release adds Gaussian noise of σ · clip to a sum of which the client's part has a norm of at most
`clip`. Releases with σ₁, σ₂, … that the client is asked for are together one Gaussian mechanism
with 1/σ² = Σ 1/σᵢ² (Dong, Roth & Su, "Gaussian differential privacy", 2022, Corollary 3.3), of
which `dp-accounting` computes ε exactly (Balle & Wang, "Improving the Gaussian mechanism for
differential privacy", ICML 2018). Only rounds for which the plan asks a client count for it: the
plan follows from the public seed, and no amplification by sampling is claimed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.util import find_spec

from fedssl.core.errors import ConfigError

Plans = Callable[[int], Sequence[str]]  # round -> the clients that it asks
# Of the noise that is computed from ε: covers the tolerance of the two numeric searches.
TOLERANCE = 1e-9


def need_accountant() -> None:
    """Raise ConfigError if the library is not installed."""
    if find_spec("dp_accounting") is None:
        raise ConfigError(
            "[privacy] needs the package dp-accounting: in a clone of fedssl, "
            'pip install ".[privacy]"'
        )


def gaussian_epsilon(noise: float, delta: float) -> float:
    """Return ε of one release with noise of `noise` · clip; infinite without noise."""
    if noise == 0:
        return math.inf
    from dp_accounting import get_epsilon_gaussian  # loads SciPy

    return float(get_epsilon_gaussian(noise, delta))


def noise_for(epsilon: float, delta: float, releases: int) -> float:
    """Return the least noise per release with which this many releases cost at most ε."""
    from dp_accounting import get_sigma_gaussian

    return float(get_sigma_gaussian(epsilon, delta)) * math.sqrt(releases) * (1 + TOLERANCE)


def most_releases(plans: Plans, rounds: int) -> int:
    """Return how many of the rounds ask the client that is asked most often."""
    asked: Counter[str] = Counter()
    for round in range(rounds):
        asked.update(plans(round))
    return max(asked.values(), default=0)


class Account:
    """The releases that each client was asked for, as Σ 1/σ²."""

    def __init__(self, plans: Plans, delta: float) -> None:
        self._plans = plans
        self._delta = delta
        self._spent: dict[str, float] = {}  # Σ 1/σ², by client

    def charge(self, round: int, noise: float) -> None:
        """Count a release in a round, with noise of `noise` · clip."""
        cost = math.inf
        if noise:
            cost = noise**-2
        for client in self._plans(round):
            self._spent[client] = self._spent.get(client, 0.0) + cost

    def epsilon(self) -> float:
        """Return ε of the releases so far, for the client that they cost most."""
        return self._epsilon(max(self._spent.values(), default=0.0))

    def epsilon_after(self, round: int, noise: float) -> float:
        """Return ε if one more release is made, in a round."""
        after = Account(self._plans, self._delta)
        after._spent.update(self._spent)
        after.charge(round, noise)
        return after.epsilon()

    def _epsilon(self, spent: float) -> float:
        if spent == 0:
            return 0.0
        return gaussian_epsilon(spent**-0.5, self._delta)
