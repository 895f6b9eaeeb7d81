"""A word when a representation collapses: when all images come to look alike to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

SPREAD = 0.1  # of embeddings: it goes to 0 in a collapse
FALLEN = 0.25  # of a client's own largest effective rank: batches, and so ranks, differ between clients
ROUNDS = 2  # in a row: one batch says little
ADVICE = "a lower learning rate, a larger batch or another temperature may help; `fedssl analyse divergence` draws it"


class Collapse:
    """Looks at lines of the rounds log, one after another; `earlier` ones are those of a run that is gone on with."""

    def __init__(self, earlier: Iterable[Mapping[str, Any]] = ()) -> None:
        self._bad, self._signs = 0, ""
        self._largest: dict[str, float] = {}  # effective rank, by client
        for line in earlier:
            self.see(line)

    def see(self, line: Mapping[str, Any]) -> str | None:
        """What to tell of a round: nothing, unless it is the one that makes collapse likely."""
        # Methods with one view of an image have nothing to make alike, and no alignment in the log.
        trained = [client for client in line["clients"] if client.get("alignment") is not None]
        if not trained:
            return None
        spread = median(client["embedding_std"] for client in trained)
        left = median(self._left(client["client"], client["effective_rank"]) for client in trained)
        signs = [f"the spread of embeddings is {spread:.2g} (1 is far apart)"] if spread < SPREAD else []
        if left < FALLEN:
            signs.append(f"the effective rank of features has fallen to {left:.0%} of the largest it was")
        self._bad, self._signs = self._bad + 1 if signs else 0, " and ".join(signs)
        return f"{self.likely}; {ADVICE}" if self._bad == ROUNDS else None

    def _left(self, client: str, rank: float) -> float:
        largest = self._largest[client] = max(rank, self._largest.get(client, 0.0))
        return rank / largest if largest else 1.0

    @property
    def likely(self) -> str | None:
        """What speaks for it as of the last round; None: nothing, or not for long enough."""
        if self._bad < ROUNDS:
            return None
        return f"images look ever more alike to the model, {self._bad} rounds in a row: {self._signs}"
