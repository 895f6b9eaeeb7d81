"""The weight of each upload in a round, and a limit on one client's share of a mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import NamedTuple

from fedssl.topology import Plan


class ImageCounts(NamedTuple):
    """How many images clients hold, as known before they train."""

    declared: Callable[[], Mapping[str, int]] = dict  # by client; called after a round's first upload
    verified: bool = False  # whether this process counted them itself; otherwise clients state them

    @property
    def max_share(self) -> float:
        """The largest share of a mean that one client has by default."""
        return 1.0 if self.verified else 0.5


NO_COUNTS = ImageCounts()


class UploadWeights:
    """Weights of one round's uploads.

    A client's number of images counts up to a limit, at which it has `max_share` of the total over all clients that
    were asked. The limit is settled before any upload is merged; if other clients are dropped later, the share of those
    that remain grows.
    """

    def __init__(
        self,
        plan: Plan,
        scheme: str,
        max_share: float = 1.0,
        counts: ImageCounts = NO_COUNTS,
        one_mean: bool = True,
    ) -> None:
        """`scheme` is the algorithm's: size or uniform; `one_mean`: it averages all uploads into one model."""
        self._plan = plan
        self._scheme = scheme
        self._max_share = max_share
        self._counts = counts
        self._one_mean = one_mean

    @cached_property
    def declared(self) -> Mapping[str, int]:
        return self._counts.declared()

    @cached_property
    def _limit(self) -> float:
        counts = [count for client, count in self.declared.items() if client in self._plan.home and count > 0]
        return largest_count(counts, self._max_share)

    def weight(self, site: str, client: str, images: int) -> float:
        """The weight of a client's upload at a site it reaches."""
        return self._plan.weight(site, client, min(images, self._limit), self._scheme)

    @cached_property
    def _total(self) -> float:
        """The sum of expected weights in the server's mean; 0 where there are several means."""
        if len(self._plan.mixing) != 1 or not self._one_mean:
            return 0.0
        return math.fsum(self._expected(client) for client in self._plan.home)

    def _expected(self, client: str) -> float:
        (site,) = self._plan.mixing
        return self.weight(site, client, self.declared.get(client, 0))

    def share(self, client: str) -> float:
        """A client's share of the server's mean by declared counts, at least an equal one: a client that declares many
        images must not make the others look small. 1 for peers, and where counts are not known."""
        if client not in self.declared or self._total <= 0:
            return 1.0
        return max(self._expected(client) / self._total, 1 / len(self._plan.home))

    def verified_images(self, client: str) -> int:
        """How many images a client holds, where this process counted them; else 0."""
        return self.declared.get(client, 0) if self._counts.verified else 0


def largest_count(counts: Collection[int], max_share: float) -> float:
    """The number of images above which a client's count is cut, so that no share exceeds `max_share`.

    With k counts cut to t and a sum of `rest` over the others, t = max_share·(k·t + rest). Infinite if no count must be
    cut. Where so few clients cannot all stay below the share, the smallest count: all weigh the same.
    """
    if max_share >= 1 or not counts:
        return math.inf
    descending = sorted(counts, reverse=True)
    rest = float(sum(descending))
    for cut, count in enumerate(descending):
        if cut * max_share >= 1:
            break
        limit = max_share * rest / (1 - cut * max_share)
        if count <= limit:
            return limit if cut else math.inf
        rest -= count
    return float(descending[-1])
