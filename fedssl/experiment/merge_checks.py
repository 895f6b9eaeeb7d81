"""Reject experiments in which a site would merge too few uploads, before any images are read."""

from __future__ import annotations

from fedssl.algorithm import Algorithm
from fedssl.core.errors import ConfigError
from fedssl.engine.means.mean_settings import MEANS, MeanSettings
from fedssl.engine.privacy.settings import PrivacySettings
from fedssl.topologies.topology import TOPOLOGIES, Topology


def check_mean(
    mean: MeanSettings, algorithm: Algorithm, topology: Topology, privacy: PrivacySettings
) -> None:
    """Raise ConfigError for a mean of several uploads where a site may merge a single one."""
    name = MEANS.name_of(type(mean))
    if privacy.enabled and mean.needs_all_uploads:
        raise ConfigError(
            f'mean "{name}" cannot be combined with [privacy], which adds noise to the sum of '
            "clipped uploads: remove one of them"
        )
    if not mean.needs_all_uploads:
        return
    if not topology.merges:
        raise ConfigError(
            f'mean "{name}" has no effect with topology '
            f'"{TOPOLOGIES.name_of(type(topology))}", which merges no models: remove mean'
        )
    if not algorithm.averages_all:
        raise ConfigError(
            f'mean "{name}" cannot be combined with an algorithm that averages clients in groups: '
            "a group may be too small, and a bad client chooses its own; remove mean, or choose "
            'another algorithm, such as "fedavg"'
        )


def check_uploads(participants: int, clients: int, needed: int, mean: MeanSettings) -> None:
    """Raise ConfigError if fewer clients train in a round than a server needs uploads from."""
    if participants < needed:
        raise ConfigError(
            f"each round has {participants} of {clients} clients, but a server needs "
            f"{needed} valid uploads to merge: set more clients (clients), a larger "
            f"topology.participation, or guard.min_uploads = {participants}"
        )
    shortage = mean.shortage(participants)
    if shortage is not None:
        raise ConfigError(
            f"each round has {participants} of {clients} clients, and {shortage}: set "
            "more clients (clients), a larger topology.participation, or another mean"
        )


def check_neighbourhoods(
    mean: MeanSettings, topology: Topology, clients: list[str], rounds: int, seed: int
) -> None:
    """Raise ConfigError if a peer merges too few uploads, its own included, in any round.

    Every round is looked at only if the peers that take part are drawn anew for each.
    """
    if not mean.needs_all_uploads:
        return
    for round in range(rounds):
        plan = topology.plan(clients, round, seed)
        smallest = min(plan.mixing, key=lambda site: len(plan.mixing[site]))
        shortage = mean.shortage(len(plan.mixing[smallest]))
        if shortage is not None:
            raise ConfigError(
                f'peer "{smallest}" merges {len(plan.mixing[smallest])} uploads in round '
                f"{round + 1}, its own included, and {shortage}: choose a topology with more "
                "neighbours, raise topology.participation, or choose another mean"
            )
        if len(plan.site_of) == len(clients):
            break
