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
    """Without arguments: no bounds, any number of uploads, and no check of merged models."""

    bound: Bound = field(default_factory=Bound)
    min_uploads: int = 1  # that a merge needs
    max_share: float = 1.0  # of a mean, for one client
    counts: ImageCounts = NO_COUNTS
    model_fault: Callable[[Tree], str | None] = no_fault  # why a site's merged state must not be used

    def admit(self, before: Sites, merged: Sites, guard: Guard) -> Sites:
        """The sites after a round: what was merged, or the earlier state where the result must not be used.

        Rejected uploads are reported as dropped, with the reason. A failed round changes no reference of the bound.
        """
        accepted = sum(report.dropped is None for report in guard.reports)
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
