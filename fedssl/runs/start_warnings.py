"""Warnings about an experiment that are printed whenever it starts or resumes."""

from __future__ import annotations

from fedssl.core.console import Notify
from fedssl.engine.means.mean_settings import MEANS
from fedssl.experiment.experiment import Experiment


def warn(experiment: Experiment, notify: Notify) -> None:
    """Print what an experiment does not protect. `--quiet` does not silence it.

    Clients that train alone share nothing.
    """
    if not experiment.topology.merges:
        return
    if experiment.algorithm.warning is not None:
        notify(f"warning: {experiment.algorithm.warning}")
    if experiment.mean.needs_all_uploads and not experiment.algorithm.needs_only_means:
        notify(
            f'warning: mean "{MEANS.name_of(type(experiment.mean))}" protects the averaged models '
            "only; with these settings the algorithm also uses other parts of uploads, such as "
            "shared features, and a bad client can still falsify those"
        )
