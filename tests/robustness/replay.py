"""Record one round of every algorithm with real training, and replay it with other replies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import pytest

from fedssl.algorithm import ALGORITHMS, Algorithm, Sites, Spec
from fedssl.cli import combinations
from fedssl.cli.combinations import Combination, images, tiny
from fedssl.core.errors import ConfigError
from fedssl.core.state.codec import dumps, loads
from fedssl.core.state.state import State
from fedssl.core.state.tree import Tree
from fedssl.engine.federate import Round, Runtime, federate
from fedssl.engine.round_rules import RoundRules
from fedssl.engine.uploads.norm_bound import TypicalUpdate
from fedssl.engine.uploads.records import Reply
from fedssl.engine.uploads.settings import GuardSettings
from fedssl.experiment.experiment import Experiment
from fedssl.method import METHODS
from fedssl.topologies.topology import TOPOLOGIES, Topology

CLIENTS = 5
BAD = "1"
CASES: dict[str, dict[str, Any]] = {
    **{name: {"name": name} for name in ALGORITHMS.names()},  # including those of other packages
    "fedavg of both": {"name": "fedavg", "aggregate": "both", "update": "both"},
    "fedbn with norms": {"name": "fedbn", "eval_norm": "mean"},
    "fedca, small": {"name": "fedca", "beta": 0.0, "dictionary": 10},
    "ccl, small": {"name": "ccl", "features": 3, "mix": 2},
}


class Played:
    """A runtime with fixed replies."""

    def __init__(self, clients: Sequence[str], replies: Sequence[Reply]) -> None:
        self.clients, self.replies = clients, replies

    def exchange(
        self, round: int, clients: Sequence[str], message: Callable[[str], Tree]
    ) -> Iterator[Reply]:
        for client in clients:
            message(client)
        return iter(self.replies)


class Recorder:
    """A runtime that records the replies of clients by round."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime, self.clients = runtime, runtime.clients
        self.rounds: list[list[Reply]] = []

    def exchange(
        self, round: int, clients: Sequence[str], message: Callable[[str], Tree]
    ) -> Iterator[Reply]:
        self.rounds.append([])
        for reply in self.runtime.exchange(round, clients, message):
            assert reply.upload is not None, reply.error
            self.rounds[-1].append(reply._replace(upload=loads(dumps(reply.upload))))
            yield reply


class Record(NamedTuple):
    """The second round of a run, so that sites and memories are not empty."""

    algorithm: Algorithm
    topology: Topology
    schema: Mapping[str, Spec]
    sites: Sites  # before it
    typical: TypicalUpdate | None
    first: Mapping[str, Reply]  # of the round before
    replies: Mapping[str, Reply]

    def sent(self, client: str) -> Tree:
        """Return the message of a client, under the keys of its upload."""
        upload = self.replies[client].upload
        assert upload is not None
        site = self.topology.plan(list(self.replies), 1, 0).site_of[client]
        message = self.algorithm.broadcast(self.sites[site], client)
        return {
            **message,
            **{key: message[name] for key, name in self.algorithm.received_keys(upload).items()},
        }

    def play(self, replies: Sequence[Reply], clients: Sequence[str] | None = None) -> Round:
        """Replay the round with these replies, in a federation of these clients alone."""
        runtime = Played(clients or list(self.replies), replies)
        (round,) = federate(
            self.algorithm,
            self.topology,
            runtime,
            self.sites,
            schema=self.schema,
            rounds=2,
            start=1,
            typical_update=self.typical,
            rules=RoundRules(GuardSettings()),
        )
        return round

    def instead(self, reply: Reply) -> Round:
        """Replay the round with this reply instead of its client's."""
        return self.play(
            [reply if reply.client == client else honest for client, honest in self.replies.items()]
        )

    def without(self, client: str) -> Round:
        """Replay the round without a client."""
        others = [other for other in self.replies if other != client]
        return self.play([self.replies[other] for other in others], others)


def bits(round: Round) -> dict[str, bytes]:
    """Return the bytes of all sites."""
    return {site: dumps(tree) for site, tree in round.sites.items()}


def models(tree: Tree) -> dict[str, State]:
    return {key: value for key, value in tree.items() if isinstance(value, State)}


def fitting(algorithm: Mapping[str, Any], topology: str) -> Experiment | None:
    """Return an experiment with the first compatible method, of a few usual ones and then of
    all.
    """
    for method in ("byol", "simclr", "mocov2", *METHODS.names()):
        train = {"batch": 4, "lr": 0.01, "workers": 1}
        experiment = tiny(
            Combination("fedavg", method, topology),
            algorithm=algorithm,
            clients=CLIENTS,
            train=train,
        )
        try:
            experiment.check()
        except ConfigError:
            continue
        return experiment
    assert ALGORITHMS[algorithm["name"]].needs_server > TOPOLOGIES[topology].has_server
    return None


@lru_cache
def recorded(case: str, topology: str = "star") -> Record | None:
    """Return a recorded round; None if the algorithm needs a server and the topology has none."""
    experiment = fitting(CASES[case], topology)
    if experiment is None:
        return None
    kept: list[Any] = []

    def watched(
        algorithm: Algorithm, topology: Topology, runtime: Runtime, sites: Sites, **rest: Any
    ) -> Iterator[Round]:
        recorder, rounds = Recorder(runtime), list[Round]()
        kept[:] = recorder, rest["schema"], rounds
        rules = RoundRules(GuardSettings())
        for round in federate(algorithm, topology, recorder, sites, **rest, rules=rules):
            rounds.append(round)
            yield round

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(combinations, "federate", watched)
        combinations.train(experiment, images())
    recorder, schema, rounds = kept
    first, second = ({reply.client: reply for reply in replies} for replies in recorder.rounds)
    record = Record(
        experiment.algorithm,
        experiment.topology,
        schema,
        rounds[0].sites,
        rounds[0].typical_update,
        first,
        second,
    )
    assert bits(record.play(list(second.values()))) == bits(rounds[1])
    return record
