"""Check that an experiment can be trained with client-level differential privacy."""

from __future__ import annotations

from collections.abc import Sequence

from fedssl.algorithm import Algorithm
from fedssl.core.errors import ConfigError
from fedssl.core.state.layout import Layout
from fedssl.engine.privacy.accountant import need_accountant
from fedssl.engine.privacy.settings import PrivacySettings
from fedssl.experiment.baseline_names import UNTRAINED
from fedssl.method import Method
from fedssl.topologies.topology import Topology


def check_privacy(
    privacy: PrivacySettings,
    topology: Topology,
    algorithm: Algorithm,
    method: Method,
    *,
    clients: int,
    named: Sequence[str],
) -> None:
    """Raise ConfigError if [privacy] is on and no guarantee would hold.

    `method` is the experiment's, without memory; `named` are its baselines.
    """
    if not privacy.enabled:
        return
    need_accountant()
    if not topology.has_server or not topology.merges:
        raise ConfigError(
            'topology: [privacy] needs a server that adds noise to a sum of uploads: choose "star"'
        )
    if not algorithm.needs_only_means:
        raise ConfigError(
            "algorithm: with these settings, it reads single uploads, but [privacy] protects only "
            "their mean: choose an algorithm that needs only means, such as fedavg"
        )
    _check_uploads(algorithm, method)
    _check_baselines(named)
    check_delta(privacy, clients)


def check_delta(privacy: PrivacySettings, clients: int) -> None:
    """Raise ConfigError if δ is too large for this many clients."""
    if clients * privacy.delta >= 1:
        raise ConfigError(
            f"privacy.delta = {privacy.delta:g} must be below 1/{clients}, one divided by the "
            "number of clients: otherwise publishing all images of one random client satisfies "
            "the guarantee. Lower privacy.delta"
        )


def _check_uploads(algorithm: Algorithm, method: Method) -> None:
    """Raise ConfigError if clients upload anything that noise does not hide."""
    schema = algorithm.upload_schema(method.reside("meta"))
    for key, spec in schema.items():
        if not isinstance(spec, Layout):
            raise ConfigError(f'algorithm: [privacy] covers models, but clients upload "{key}" too')
        for entry in spec.entries:
            if entry.role in ("statistic", "buffer"):
                raise ConfigError(
                    f"method: clients would upload {entry.name}, a running statistic of their "
                    "images, which [privacy] never releases: set "
                    'method.norm = "group", or keep such layers local (algorithm fedbn)'
                )


def _check_baselines(baselines: Sequence[str]) -> None:
    """Raise ConfigError for baselines that train without noise, and would be in the results."""
    trained = [name for name in baselines if name not in UNTRAINED]
    if trained:
        raise ConfigError(
            f'probe.baselines: "{trained[0]}" trains on the clients\' images without noise, and '
            "its figures would be in the results of a private run: remove it"
        )
