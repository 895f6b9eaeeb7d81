"""The weight of each upload in a round, and a limit on one client's share of a mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import NamedTuple

from fedssl.topologies.topology import Plan


class ImageCounts(NamedTuple):
    """How many images clients hold, as known before they train."""

    # Returns the counts by client; called after a round's first upload.
    declared: Callable[[], Mapping[str, int]] = dict
    verified: bool = False  # True if this process counted them; otherwise clients state them

    @property
    def max_share(self) -> float:
        """The default of the largest share of a mean that one client has."""
        return 1.0 if self.verified else 0.5


NO_COUNTS = ImageCounts()


class UploadWeights:
    """Weights of one round's uploads.

    A client's images count up to a limit, at which it has `max_share` of the total over all clients
    that were asked. The limit is set before any upload is merged; if other clients are dropped
    later, the shares of those that remain grow.
    """

    def __init__(
        self,
        plan: Plan,
        scheme: str,
        *,
        max_share: float = 1.0,
        counts: ImageCounts = NO_COUNTS,
        averages_all: bool = True,
    ) -> None:
        """`scheme` is the algorithm's: size or uniform; `averages_all`: it averages all uploads."""
        self._plan = plan
        self._scheme = scheme
        self._max_share = max_share
        self._counts = counts
        self._one_mean = averages_all

    @cached_property
    def declared(self) -> Mapping[str, int]:
        """The number of images that each client declared."""
        return self._counts.declared()

    @cached_property
    def _limit(self) -> float:
        counts = []
        for client, count in self.declared.items():
            if client in self._plan.site_of and count > 0:
                counts.append(count)
        return largest_count(counts, self._max_share)

    def weight(self, site: str, client: str, images: int) -> float:
        """Return the weight of a client's upload at a site that it reaches."""
        return self._plan.weight(site, client, min(images, self._limit), self._scheme)

    @cached_property
    def _total(self) -> float:
        """The sum of expected weights in the server's mean; 0 where there are several means."""
        if len(self._plan.mixing) != 1 or not self._one_mean:
            return 0.0
        return math.fsum(self._expected(client) for client in self._plan.site_of)

    def _expected(self, client: str) -> float:
        (site,) = self._plan.mixing
        return self.weight(site, client, self.declared.get(client, 0))

    def share(self, client: str) -> float:
        """Return a client's share of the server's mean by declared counts, at least 1/clients.

        Without that minimum, a client that declares too many images would shrink the shares of the
        others, and with them the influence of which their norms are limited. The share is 1 for
        peers, and where counts are not known.
        """
        if client not in self.declared or self._total <= 0:
            return 1.0
        return max(self._expected(client) / self._total, 1 / len(self._plan.site_of))

    def verified_images(self, client: str) -> int:
        """Return how many images a client holds if this process counted them, otherwise 0."""
        if not self._counts.verified:
            return 0
        return self.declared.get(client, 0)


def largest_count(counts: Collection[int], max_share: float) -> float:
    """Return the count above which counts are cut, so that no share exceeds `max_share`.

    With k counts cut to t and a sum of `rest` over the others, t = max_share·(k·t + rest). Infinite
    if no count must be cut. Where so few clients cannot all stay below the share, this is the
    smallest count: all have the same weight.
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
