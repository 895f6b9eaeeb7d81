"""The round loop: yield finished rounds. Checkpoints, probes and the rounds log consume them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from fedssl.algorithm import Algorithm, Averaging, Sites, Upload
from fedssl.core.errors import RunError, TooFewUploadsError
from fedssl.core.state.mean import Mean
from fedssl.core.state.tree import Tree
from fedssl.engine.privacy.merge import PrivateMerge, Spent
from fedssl.engine.round_rules import NO_RULES, RoundRules
from fedssl.engine.uploads.guard import Guard
from fedssl.engine.uploads.norm_bound import TypicalUpdate
from fedssl.engine.uploads.records import Reply, Report
from fedssl.engine.uploads.routing import Routing
from fedssl.engine.uploads.validate import Schema
from fedssl.topologies.topology import Plan, Topology

MAX_FAILED_ROUNDS = 3  # in a row


class Runtime(Protocol):
    """Carries messages to clients and replies back."""

    @property
    def clients(self) -> Sequence[str]:
        """The clients that have images, in order."""

    def exchange(
        self, round: int, clients: Sequence[str], message: Callable[[str], Tree]
    ) -> Iterator[Reply]:
        """Run one round at these clients; yield replies in the clients' order."""


class Round(NamedTuple):
    """A finished round, counted from 0, with its sites and a report of every client asked."""

    number: int
    sites: Sites
    reports: Sequence[Report]
    # The median update that updates of the next round are compared with.
    typical_update: TypicalUpdate | None = None
    spent: Spent | None = None  # the privacy that the run has cost so far, if it is limited

    @classmethod
    def of(
        cls, number: int, sites: Sites, guard: Guard, typical_update: TypicalUpdate | None
    ) -> Round:
        """Return the round that a guard has seen; a failed one keeps the typical update."""
        finished = cls(number, sites, guard.reports, typical_update)
        if finished.failed:
            return finished
        return finished._replace(typical_update=guard.bound.next_typical())

    @property
    def failed(self) -> bool:
        """True if no upload counted."""
        return all(report.dropped for report in self.reports)


class Broadcast:
    """The messages of one round: made when a client is asked, kept until it has replied."""

    def __init__(self, algorithm: Algorithm, plan: Plan, sites: Sites) -> None:
        self.sent: dict[str, Tree] = {}
        self._algorithm = algorithm
        self._plan = plan
        self._sites = sites

    def message(self, client: str) -> Tree:
        """Return the message to a client."""
        self.sent[client] = self._algorithm.broadcast(self._site(client), client)
        return self.sent[client]

    def statistics_reference(self, client: str) -> Tree:
        """Return the models that a client's running statistics are compared with."""
        return self._algorithm.statistics_reference(self._site(client))

    def guard(
        self,
        schema: Schema,
        round: int,
        runtime: Runtime,
        rules: RoundRules,
        typical_update: TypicalUpdate | None,
    ) -> Guard:
        """Return the guard that validates the replies to these messages."""
        return Guard(
            schema,
            round,
            self._plan.site_of,
            self.sent,
            received_keys=self._algorithm.received_keys,
            statistics_reference=self.statistics_reference,
            bound=rules.bound(round, typical_update),
            bounded=bounded_clients(self._plan, runtime, rules),
            weights=rules.weights(self._plan, self._algorithm),
        )

    def _site(self, client: str) -> Tree:
        return self._sites[self._plan.site_of[client]]


class PlainMerge:
    """Merges uploads as the algorithm does, for as many rounds as are planned."""

    spent = None

    def __init__(self, algorithm: Algorithm, mean: Callable[[], Averaging]) -> None:
        self._algorithm = algorithm
        self._mean = mean

    def within_budget(self, round: int) -> bool:
        """True: there is no budget."""
        return True

    def __call__(self, round: int, plan: Plan, site: Tree, uploads: Iterable[Upload]) -> Tree:
        """Return the site's next state."""
        return self._algorithm.merge(site, uploads, self._mean)

    def withhold(self, reports: list[Report]) -> None:
        """Leave the reports as they are."""


def federate(
    algorithm: Algorithm,
    topology: Topology,
    runtime: Runtime,
    sites: Sites,
    *,
    schema: Schema,
    rounds: int,
    start: int = 0,
    seed: int = 0,
    typical_update: TypicalUpdate | None = None,
    rules: RoundRules = NO_RULES,
    mean: Callable[[], Averaging] = Mean,
    private: PrivateMerge | None = None,
) -> Iterator[Round]:
    """Yield rounds `start` … `rounds` − 1, from `sites`. A failed round changes no site.

    `private` merges uploads, if it is given, and ends the run when its budget is spent.
    """
    merge = private or PlainMerge(algorithm, mean)
    failures = 0
    for number in range(start, rounds):
        if not merge.within_budget(number):
            return
        plan = topology.plan(runtime.clients, number, seed)
        broadcast = Broadcast(algorithm, plan, sites)
        guard = broadcast.guard(schema, number, runtime, rules, typical_update)
        # Lazy: clients train, and replies are checked, while a site's merge consumes its uploads.
        replies = runtime.exchange(number, list(plan.site_of), broadcast.message)
        routing = Routing(plan, guard(replies), guard.weights)
        merged, unmerged = merge_sites(merge, number, plan, sites, routing)
        merge.withhold(guard.reports)
        sites = rules.accept(sites, merged, guard, asked=len(plan.site_of), unmerged=unmerged)
        finished = Round.of(number, sites, guard, typical_update)._replace(spent=merge.spent)
        typical_update = finished.typical_update
        yield finished
        failures = failures + 1 if finished.failed else 0
        if failures == MAX_FAILED_ROUNDS:
            raise RunError(_too_many_failures(guard))


def merge_sites(
    merge: PlainMerge | PrivateMerge, number: int, plan: Plan, sites: Sites, routing: Routing
) -> tuple[Sites, Mapping[str, str]]:
    """Return the sites after their merges, and why some received too few uploads for their mean.

    Those keep their previous state.
    """
    merged = dict(sites)
    unmerged = {}
    for site, uploads in routing:
        try:
            merged[site] = merge(number, plan, sites[site], uploads)
        except TooFewUploadsError as problem:
            unmerged[site] = str(problem)
    return merged, unmerged


def bounded_clients(plan: Plan, runtime: Runtime, rules: RoundRules) -> Collection[str]:
    """Return the clients whose updates are limited. A single client is compared with no other."""
    if len(runtime.clients) == 1 or not rules.compares_uploads:
        return ()
    return plan.senders


def _too_many_failures(guard: Guard) -> str:
    last_round = "no client answered"
    if guard.reports:
        first = guard.reports[0]
        last_round = f'the upload of client "{first.client}" was dropped. Reason: {first.dropped}'
    return (
        f"{MAX_FAILED_ROUNDS} consecutive rounds failed. In the last round, {last_round}. "
        "rounds.jsonl gives the reason for every client (`dropped`)"
    )
