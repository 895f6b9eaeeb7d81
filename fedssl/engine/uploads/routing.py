"""Pass uploads on to the sites that merge them, and hold none longer than a site needs it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from fedssl.algorithm import Upload
from fedssl.engine.uploads.records import Candidate
from fedssl.engine.uploads.upload_weights import UploadWeights
from fedssl.topologies.topology import Plan


class Routing:
    """Yields each site that uploads reach, with its weighted uploads one by one. Iterate once.

    Sites are ordered by the last client that feeds them, so that a site merges as soon as that
    client has replied or was dropped. Until then its uploads are queued. While a site merges,
    its uploads are passed on as they arrive; a single server therefore queues none.
    """

    def __init__(self, plan: Plan, candidates: Iterable[Candidate], weights: UploadWeights) -> None:
        self._candidates = iter(candidates)
        self._weights = weights
        self._sites_of: dict[str, list[str]] = {client: [] for client in plan.site_of}
        self._missing: dict[str, int] = {}  # clients of a site that have not replied yet
        self._queues: dict[str, deque[Upload]] = {site: deque() for site in plan.sites}
        position = {client: i for i, client in enumerate(plan.site_of)}
        last = {}  # position of the last client that feeds a site
        for site, clients in plan.mixing.items():
            last[site] = -1
            self._missing[site] = 0
            for client in clients:
                if client in position:
                    self._sites_of[client].append(site)
                    self._missing[site] += 1
                    last[site] = max(last[site], position[client])
        self._order = sorted(plan.sites, key=lambda site: last[site])

    def __iter__(self) -> Iterator[tuple[str, Iterator[Upload]]]:
        for site in self._order:
            if self._has_upload(site):
                yield site, self._uploads(site)
            del self._queues[site]
        # A merge may stop early: every client that was asked is still checked and reported.
        while self._receive():
            pass

    def _uploads(self, site: str) -> Iterator[Upload]:
        while self._has_upload(site):
            yield self._queues[site].popleft()

    def _has_upload(self, site: str) -> bool:
        """True if one more upload reaches a site; receives candidates until that is known."""
        while not self._queues[site] and self._missing[site] and self._receive():
            pass
        return bool(self._queues[site])

    def _receive(self) -> bool:
        """Receive one candidate and queue it at its sites; False if there are no more."""
        candidate = next(self._candidates, None)
        if candidate is None:
            return False
        for site in self._sites_of[candidate.client]:
            self._missing[site] -= 1
            if candidate.upload is not None and site in self._queues:
                weight = self._weights.weight(site, candidate.client, candidate.images)
                self._queues[site].append(Upload(candidate.client, weight, candidate.upload))
        return True
