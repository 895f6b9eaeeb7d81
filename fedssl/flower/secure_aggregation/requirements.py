"""Turn secure aggregation on for a run: check that its uploads can be summed in secret."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fedssl.core.console import Notify
from fedssl.core.errors import ConfigError
from fedssl.engine.checkpoints.store import Snapshot
from fedssl.engine.means.mean_settings import MEANS
from fedssl.engine.uploads.upload_weights import NO_COUNTS
from fedssl.experiment.experiment import Experiment
from fedssl.flower.runtime import FlowerRuntime
from fedssl.flower.secure_aggregation.roster import MIN_UPLOADS
from fedssl.flower.secure_aggregation.runtime import SecureRuntime, SumSettings
from fedssl.flower.server_settings import ServerSettings

REQUIRED_BY_NODE = (
    "it sends masked uploads only (secure-aggregation='required' in its --node-config): set "
    "secure-aggregation = true in the app's config"
)


def check_secure(experiment: Experiment, settings: ServerSettings, notify: Notify) -> None:
    """Print whether secure aggregation is on; ConfigError if the experiment cannot use it."""
    if not settings.secure_aggregation:
        return
    check_experiment(experiment)
    notify(
        "secure aggregation is on: this server receives sums of at least "
        f"{MIN_UPLOADS} masked uploads, and no single one; more than "
        f"{100 * settings.secure_threshold:g}% of the clients of a round are needed to unmask its "
        "sum"
    )


def secure_runtime(
    experiment: Experiment, settings: ServerSettings, snapshot: Snapshot | None
) -> Callable[..., FlowerRuntime]:
    """Return the constructor of a runtime that receives sums of uploads only."""
    sums = SumSettings(
        threshold=settings.secure_threshold,
        uniform=experiment.algorithm.weights == "uniform",
        max_share=experiment.guard.max_share or NO_COUNTS.max_share,
        guard=experiment.guard,
        lr_at=lambda round: experiment.train.lr_at(round, experiment.rounds),
    )
    typical_update = None
    if snapshot is not None:
        typical_update = snapshot.typical_update
    return partial(SecureRuntime, settings=sums, typical_update=typical_update)


def check_experiment(experiment: Experiment) -> None:
    """Raise ConfigError if an experiment needs more than means of uploads."""
    settings = experiment.to_dict()
    algorithm = settings["algorithm"]["name"]
    if not (experiment.topology.has_server and experiment.topology.merges):
        topology = settings["topology"]["name"]
        raise ConfigError(
            f'secure-aggregation needs a server that merges uploads, and topology "{topology}" has '
            'none: choose topology "star" or turn secure-aggregation off'
        )
    if not (experiment.algorithm.needs_only_means and experiment.algorithm.averages_all):
        raise ConfigError(
            f'algorithm "{algorithm}", as it is set, reads single uploads, which '
            "secure-aggregation hides from the server: choose an algorithm that averages models, "
            "or turn secure-aggregation off"
        )
    _check_server_reads_no_upload(experiment)


def _check_server_reads_no_upload(experiment: Experiment) -> None:
    """Raise ConfigError if the server must compare or clip single uploads."""
    if experiment.mean.needs_all_uploads:
        mean = MEANS.name_of(type(experiment.mean))
        raise ConfigError(
            f'mean "{mean}" compares single uploads, which secure-aggregation hides from the '
            'server: choose mean "weighted" or turn secure-aggregation off'
        )
    if experiment.privacy.enabled:
        raise ConfigError(
            "[privacy] clips each upload on the server, and secure-aggregation hides uploads from "
            "it: leave one of them out"
        )


def check_clients(experiment: Experiment, clients: int) -> None:
    """Raise ConfigError if fewer clients take part in a round than a sum needs."""
    participants = experiment.topology.participants(clients)
    if participants < MIN_UPLOADS:
        raise ConfigError(
            f"{participants} clients take part in a round, and secure-aggregation needs "
            f"{MIN_UPLOADS}: of a sum of two models, each client could subtract its own"
        )
