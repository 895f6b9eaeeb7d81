"""The round loop: a generator of finished rounds. Checkpoints, probes, log and pages consume it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from fedssl.admission import Admission
from fedssl.algorithm import Algorithm, Averaging, Spec
from fedssl.bound import Usual
from fedssl.delivery import Delivery
from fedssl.errors import RunError
from fedssl.guard import Guard, Reply, Report
from fedssl.topology import Plan, Topology
from fedssl.tree import Tree
from fedssl.upload_weights import UploadWeights

Sites = Mapping[str, Tree]
GIVE_UP_AFTER = 3  # failed rounds in a row


class Runtime(Protocol):
    """Carries messages to clients and back."""

    @property
    def clients(self) -> Sequence[str]:
        """Those that have images, in order."""

    def exchange(self, round: int, home: Mapping[str, str], message: Callable[[str], Tree]) -> Iterator[Reply]:
        """Run one round at the clients in `home`; replies come in the clients' order."""


class Round(NamedTuple):
    """A finished round (counted from 0), its sites and a report of every client that was asked."""

    number: int
    sites: Sites
    reports: Sequence[Report]
    usual: Usual | None = None  # what the next round is compared with

    @property
    def failed(self) -> bool:
        return all(report.dropped for report in self.reports)


def federate(
    algorithm: Algorithm,
    topology: Topology,
    runtime: Runtime,
    wire: Mapping[str, Spec],
    sites: Sites,
    mean: Callable[[], Averaging],
    seed: int,
    start: int,
    rounds: int,
    admission: Admission | None = None,
) -> Iterator[Round]:
    """Rounds `start` … `rounds` − 1, from `sites`. A failed round leaves its sites as they were."""
    admission = admission or Admission()
    bound = admission.bound
    failures = 0
    for number in range(start, rounds):
        plan = topology.plan(runtime.clients, number, seed)
        before = sites
        sent: dict[str, Tree] = {}

        def message(client: str, plan: Plan = plan, sites: Sites = before, sent: dict[str, Tree] = sent) -> Tree:
            sent[client] = algorithm.broadcast(sites[plan.home[client]], client)
            return sent[client]

        def reference(client: str, plan: Plan = plan, sites: Sites = before) -> Tree:
            return algorithm.reference(sites[plan.home[client]])

        bound.begin(number)
        bounded = plan.heard if len(runtime.clients) > 1 else ()  # a single client is compared with no other
        weights = UploadWeights(plan, algorithm.weights, admission.max_share, admission.counts, algorithm.one_mean)
        guard = Guard(wire, number, plan.home, sent, bound, bounded, algorithm.renamed, weights, reference)
        heard = guard(runtime.exchange(number, plan.home, message))
        merged = dict(before)
        for site, uploads in Delivery(plan, heard, weights):
            merged[site] = algorithm.merge(before[site], uploads, mean)
        sites = admission.admit(before, merged, guard, asked=len(plan.home))
        finished = Round(number, sites, guard.reports, bound.usual)
        yield finished
        failures = failures + 1 if finished.failed else 0
        if failures == GIVE_UP_AFTER:
            why = guard.reports[0].dropped if guard.reports else "no client answered"
            raise RunError(f"{failures} rounds in a row failed; the last: {why}")
