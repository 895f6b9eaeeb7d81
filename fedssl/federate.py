"""The round loop: a generator of finished rounds. Checkpoints, probes, log and pages consume it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from fedssl.algorithm import Algorithm, Averaging, Spec
from fedssl.bound import Bound, Usual
from fedssl.delivery import Delivery
from fedssl.errors import RunError
from fedssl.guard import Guard, Reply, Report
from fedssl.topology import Plan, Topology
from fedssl.tree import Tree

Sites = Mapping[str, Tree]
GIVE_UP_AFTER = 3  # rounds in a row without one sound upload


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
    bound: Bound | None = None,
    required: Callable[[int], int] = lambda asked: 0,
) -> Iterator[Round]:
    """Yield rounds `start` … `rounds` − 1, beginning with `sites`.

    `required` returns how many valid uploads a round of `asked` clients needs. Uploads are merged as they arrive; if
    there are too few in the end, the merge is discarded and the sites stay as they were.
    """
    bound = bound or Bound()
    failures = 0
    for number in range(start, rounds):
        plan = topology.plan(runtime.clients, number, seed)
        before, sent = sites, dict[str, Tree]()

        def message(client: str, plan: Plan = plan, sites: Sites = before, sent: dict[str, Tree] = sent) -> Tree:
            sent[client] = algorithm.broadcast(sites[plan.home[client]], client)
            return sent[client]

        bound.begin(number)
        bounded = plan.heard if len(runtime.clients) > 1 else ()  # one client has nobody to be compared with
        guard = Guard(wire, number, plan.home, sent, bound, bounded, algorithm.renamed)
        heard = guard(runtime.exchange(number, plan.home, message))
        sites = dict(before)
        for site, uploads in Delivery(plan, heard, algorithm.weights):
            sites[site] = algorithm.merge(before[site], uploads, mean)
        reports = guard.reports
        least = required(len(plan.home))
        if _valid(reports) < least:
            sites = before
            bound.begin(number)  # discards the norms of this round's uploads
            reports = _discarded(reports, len(plan.home), least)
        bound.end()
        finished = Round(number, sites, reports, bound.usual)
        yield finished
        failures = failures + 1 if finished.failed else 0
        if failures == GIVE_UP_AFTER:
            why = reports[0].dropped if reports else "nobody answered"
            raise RunError(f"no sound upload in {failures} rounds; the last: {why}")


def _valid(reports: Sequence[Report]) -> int:
    return sum(report.dropped is None for report in reports)


def _discarded(reports: Sequence[Report], asked: int, least: int) -> list[Report]:
    """Mark valid uploads as dropped because there were fewer than `least`. Their clients have trained all the same."""
    why = f"only {_valid(reports)} of {asked} clients sent a valid upload; {least} are required"
    return [
        report if report.dropped else Report(report.client, why, None, report.bytes_down, moved_on=True)
        for report in reports
    ]
