"""The rules that uploads and merged models must satisfy before a round counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fedssl.bound import Bound
from fedssl.guard import Guard
from fedssl.topology import SERVER
from fedssl.tree import Tree
from fedssl.upload_weights import NO_COUNTS, ImageCounts

Sites = Mapping[str, Tree]


def no_fault(site: Tree) -> None:
    """Accept every merged state."""


@dataclass(frozen=True)
class Admission:
    """Rules for accepting a round. The defaults accept every round."""

    bound: Bound = field(default_factory=Bound)
    min_uploads: int = 1  # that a merge needs
    quorum: Callable[[int], int] = lambda asked: 0  # number of clients asked -> valid uploads required
    max_share: float = 1.0  # of a mean, for one client
    counts: ImageCounts = NO_COUNTS
    model_fault: Callable[[Tree], str | None] = no_fault  # why a site's merged state must not be used

    def admit(self, before: Sites, merged: Sites, guard: Guard, asked: int) -> Sites:
        """Return the sites after a round: merged states, or the previous state of each site whose merge is rejected.

        Rejected uploads are reported as dropped, with the reason. A failed round changes no reference of the bound.
        """
        accepted = sum(report.dropped is None for report in guard.reports)
        least = self.quorum(asked)
        if 0 < accepted < least:
            guard.reject(f"only {accepted} of {asked} clients sent a valid upload; {least} are required (quorum)")
            return before
        if 0 < accepted < self.min_uploads:
            uploads = "1 valid upload" if accepted == 1 else f"{accepted} valid uploads"
            guard.reject(f"the round had {uploads}, and a merge needs {self.min_uploads} (guard.min_uploads)")
            return before
        admitted = dict(merged)
        for site, state in merged.items():
            if state is before[site]:
                continue
            fault = self.model_fault(state)
            if fault is not None:
                admitted[site] = before[site]
                guard.reject(f"the merged model is rejected: {fault}", None if site == SERVER else [site])
        if any(report.dropped is None for report in guard.reports):
            self.bound.end()
        return admitted
