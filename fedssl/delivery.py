"""From clients to sites: uploads are passed on as they arrive, and nobody holds one longer than a site needs it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from fedssl.algorithm import Heard, Upload
from fedssl.topology import Plan
from fedssl.upload_weights import UploadWeights


class Delivery:
    """Each site that uploads reach, with its uploads one by one, weighed; iterate over it once.

    A site has its turn when the last client that feeds it comes last among all still to be heard, so it can merge as
    soon as that client has answered or was dropped. Until then its uploads wait for it; during its turn they are
    handed over as they are heard, so that for a single server none waits here.
    """

    def __init__(self, plan: Plan, heard: Iterable[Heard], weights: UploadWeights) -> None:
        self._heard = iter(heard)
        self._weights = weights
        turn = {client: i for i, client in enumerate(plan.home)}
        self._takers: dict[str, list[str]] = {client: [] for client in plan.home}
        self._missing: dict[str, int] = {}  # clients still to be heard, by site
        self._waiting: dict[str, deque[Upload]] = {site: deque() for site in plan.sites}
        last = {}
        for site, clients in plan.mixing.items():
            asked = [client for client in clients if client in turn]
            for client in asked:
                self._takers[client].append(site)
            self._missing[site] = len(asked)
            last[site] = max((turn[client] for client in asked), default=-1)
        self._order = sorted(plan.sites, key=lambda site: last[site])

    def __iter__(self) -> Iterator[tuple[str, Iterator[Upload]]]:
        for site in self._order:
            if self._reaches(site):
                yield site, self._feed(site)
            del self._waiting[site]
        while self._hear():  # a merge may stop early; every client asked is heard and reported all the same
            pass

    def _feed(self, site: str) -> Iterator[Upload]:
        while self._reaches(site):
            yield self._waiting[site].popleft()

    def _reaches(self, site: str) -> bool:
        """Whether one more upload comes to a site; listens until that is known."""
        while not self._waiting[site] and self._missing[site] and self._hear():
            pass
        return bool(self._waiting[site])

    def _hear(self) -> bool:
        """Listen to one more client, and leave its upload with all sites that wait for it; False: that was all."""
        one = next(self._heard, None)
        if one is None:
            return False
        for site in self._takers[one.client]:
            self._missing[site] -= 1
            if one.tree is not None and site in self._waiting:
                weight = self._weights.weight(site, one.client, one.images)
                self._waiting[site].append(Upload(one.client, weight, one.tree))
        return True
