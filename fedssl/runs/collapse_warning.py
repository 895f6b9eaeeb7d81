"""Warn when a representation collapses: when the features of all images become alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

MIN_SPREAD = 0.1  # of embeddings: it falls to 0 in a collapse
# Of the client's own largest effective rank: batches, and so ranks, differ between clients.
MIN_RANK_SHARE = 0.25
ROUNDS = 2  # in a row: a single batch is weak evidence
ADVICE = (
    "a lower learning rate, a larger batch or another temperature may help; "
    "`fedssl analyse divergence` draws it"
)


class Collapse:
    """Detect collapse from the lines of the rounds log, in order.

    `earlier` are the lines of a run that is resumed.
    """

    def __init__(self, earlier: Iterable[Mapping[str, Any]] = ()) -> None:
        self._bad_rounds = 0  # in a row
        self._signs = ""  # in the last round
        self._largest_rank: dict[str, float] = {}  # effective rank, by client
        for line in earlier:
            self.update(line)

    def update(self, line: Mapping[str, Any]) -> str | None:
        """Add a round; return a warning if it is the one that makes collapse likely."""
        # Methods with one view of an image align nothing, and log no alignment.
        trained = [client for client in line["clients"] if client.get("alignment") is not None]
        if not trained:
            return None
        signs = self._find_signs(trained)
        self._signs = " and ".join(signs)
        self._bad_rounds = self._bad_rounds + 1 if signs else 0
        if self._bad_rounds != ROUNDS:
            return None
        return f"{self.likely}; {ADVICE}"

    def _find_signs(self, trained: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return the signs of collapse in one round, as medians over clients."""
        spread = median(client["embedding_std"] for client in trained)
        rank_share = median(
            self._rank_share(client["client"], client["effective_rank"]) for client in trained
        )
        signs = []
        if spread < MIN_SPREAD:
            signs.append(f"the spread of embeddings is {spread:.2g} (0: all alike, 1: far apart)")
        if rank_share < MIN_RANK_SHARE:
            signs.append(
                f"the effective rank of features has fallen to {rank_share:.0%} of its maximum"
            )
        return signs

    def _rank_share(self, client: str, rank: float) -> float:
        """Return a client's effective rank as a share of the largest it had."""
        largest = max(rank, self._largest_rank.get(client, 0.0))
        self._largest_rank[client] = largest
        return rank / largest if largest else 1.0

    @property
    def likely(self) -> str | None:
        """The signs of collapse as of the last round; None if there are none for long enough."""
        if self._bad_rounds < ROUNDS:
            return None
        return (
            f"the features of images become alike (collapse), {self._bad_rounds} rounds in a row: "
            f"{self._signs}"
        )
