"""The rules that uploads and merged models must satisfy before a round counts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from fedssl.algorithm import Algorithm, Sites
from fedssl.core.state.tree import Tree
from fedssl.engine.uploads.guard import Guard
from fedssl.engine.uploads.norm_bound import NormBound, TypicalUpdate
from fedssl.engine.uploads.settings import NO_BOUNDS, GuardSettings
from fedssl.engine.uploads.upload_weights import NO_COUNTS, ImageCounts, UploadWeights
from fedssl.topologies.topology import SERVER, Plan

ALL_MERGED: Mapping[str, str] = MappingProxyType({})


def accept_every_model(site: Tree) -> None:
    """Accept every merged state."""


def no_quorum(asked: int) -> int:
    """Require no number of valid uploads."""
    return 0


def constant_lr(round: int) -> float:
    """Return the same learning rate for every round."""
    return 1.0


@dataclass(frozen=True)
class RoundRules:
    """Rules for accepting a round. The defaults accept every round."""

    guard: GuardSettings = NO_BOUNDS
    lr_at: Callable[[int], float] = constant_lr  # round -> learning rate
    min_uploads: int = 1  # that a merge needs
    quorum: Callable[[int], int] = no_quorum  # clients asked -> valid uploads required
    max_share: float = 1.0  # of a mean, for one client
    # False: a client's upload is never judged by those of others.
    compares_uploads: bool = True
    counts: ImageCounts = NO_COUNTS
    # Returns why a site's merged state must not be used; None if it may be.
    model_fault: Callable[[Tree], str | None] = accept_every_model

    def bound(self, round: int, typical: TypicalUpdate | None) -> NormBound:
        """Return the bound on updates at the start of a round."""
        return NormBound(self.guard, self.lr_at(round), typical)

    def weights(self, plan: Plan, algorithm: Algorithm) -> UploadWeights:
        """Return the weights of a round's uploads."""
        return UploadWeights(
            plan,
            algorithm.weights,
            max_share=self.max_share,
            counts=self.counts,
            averages_all=algorithm.averages_all,
        )

    def accept(
        self,
        before: Sites,
        merged: Sites,
        guard: Guard,
        asked: int,
        unmerged: Mapping[str, str] = ALL_MERGED,
    ) -> Sites:
        """Return the sites after a round; `unmerged` has the reasons why some could not merge.

        A site whose merge is rejected keeps its previous state; the uploads that were rejected with
        it are reported as dropped.
        """
        accepted = sum(report.dropped is None for report in guard.reports)
        if accepted == 0:
            return before
        too_few = self.too_few(accepted, asked)
        if too_few is not None:
            guard.reject(too_few)
            return before
        for site, reason in unmerged.items():
            guard.reject(reason, senders_of(site))
        admitted = dict(merged)
        for site, state in merged.items():
            if state is before[site]:
                continue
            fault = self.model_fault(state)
            if fault is not None:
                admitted[site] = before[site]
                guard.reject(f"the merged model is rejected: {fault}", senders_of(site))
        return admitted

    def too_few(self, accepted: int, asked: int) -> str | None:
        """Return why a round has too few valid uploads; None if there are enough."""
        required = self.quorum(asked)
        if accepted < required:
            return (
                f"only {accepted} of {asked} clients sent a valid upload; {required} are required "
                "(quorum)"
            )
        if accepted < self.min_uploads:
            return (
                f"valid uploads in this round: {accepted}; a merge needs {self.min_uploads} "
                "(guard.min_uploads)"
            )
        return None


def senders_of(site: str) -> Collection[str] | None:
    """Return the clients whose uploads are dropped with a site's merge; None: all, of a server."""
    return None if site == SERVER else [site]


NO_RULES = RoundRules()  # every round is accepted
