"""Describe what a run trains, how long that takes, and what makes it shorter."""

from __future__ import annotations

from fedssl.core.console import approximate_time
from fedssl.core.state.layout import PARAMETERS, Layout
from fedssl.engine.uploads.validate import Schema
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.federation_setup import Federation
from fedssl.method import Method
from fedssl.nets.adapters import frozen_size, is_factor
from fedssl.runs.time_left import FollowingWork

LONG = 15 * 60.0  # seconds, from which what makes a run shorter is printed
MIN_SIDE = 32  # pixels; half of an image must be at least as large
MIN_SHARE = 0.2  # of the time, from which leaving out the baselines is suggested
SMALL_BACKBONE = "cnn"


def workload(title: str, federation: Federation, done: int) -> str:
    """Return what is trained, on which device, for how many rounds; `done` are finished."""
    experiment = federation.experiment
    layout = federation.trainer.method.state.layout
    trained = layout.pick(("backbone",), PARAMETERS)
    weights = trained.floats + _weights_saved(federation.trainer.method, trained)
    clients = f"{len(federation.clients):,} clients"
    plan = experiment.topology.plan(federation.clients, 0, experiment.seed)
    if len(plan.site_of) < len(federation.clients):
        clients += f" ({len(plan.site_of):,} in each round)"
    images = sum(federation.image_counts().values())
    rounds = f"{experiment.rounds:,} rounds"
    if done:
        rounds = f"{experiment.rounds - done:,} of {rounds}"
    return (
        f"{title}: training {experiment.method.backbone} ({weights:,} weights) on "
        f"{federation.device}, {clients}, {images:,} images, {rounds}"
    )


def adapter_line(method: Method, schema: Schema) -> str | None:
    """Return what adapters save, for uploads of this schema; None without adapters."""
    if not frozen_size(method.backbone):
        return None
    sent = 0
    heads = 0
    whole = 0  # bytes without adapters
    for layout in schema.values():
        if isinstance(layout, Layout):
            sent += layout.nbytes
            others = [part for part in layout.parts if part not in ("backbone", "target")]
            heads += layout.pick(others).nbytes
            whole += layout.nbytes + 4 * _weights_saved(method, layout)
    trained = method.state.layout.pick(("backbone",), PARAMETERS)
    line = (
        f"adapters: {trained.floats:,} weights are trained and sent instead of the backbone's "
        f"{trained.floats + _weights_saved(method, trained):,}; an upload has {_megabytes(sent)} "
        f"instead of {_megabytes(whole)}"
    )
    if heads > sent / 2:
        line += f", of which {_megabytes(heads)} are heads: smaller heads shorten it"
    return line


def _weights_saved(method: Method, layout: Layout) -> int:
    """Return the number of weights that a model of this layout does not have due to adapters."""
    factors = [entry.size for entry in layout.entries if is_factor(entry.name)]
    if not factors:
        return 0
    return frozen_size(method.backbone) - sum(factors)


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.2f} MB"


def shorter(
    federation: Federation, training: float, all_rounds: float, later: FollowingWork
) -> str | None:
    """Return what makes a run on a CPU shorter, in a line; None if it is short.

    `training` is the time of the rounds that are left, `all_rounds` that of all rounds.
    """
    total = later.total(training, all_rounds)
    if total < LONG or federation.device.type != "cpu":
        return None
    experiment = federation.experiment
    ways = []
    side = _smaller_side(experiment)
    if side is not None:
        ways.append(f"--set data.size={side} is 2 to 4 times as fast")
    if experiment.method.backbone != SMALL_BACKBONE:
        ways.append(f"--set method.backbone={SMALL_BACKBONE} is a small network")
    if experiment.rounds > 1:
        half = experiment.rounds // 2
        ways.append(f"--set rounds={half} takes about half the time, but trains less")
    baselines = later.baselines * all_rounds
    if baselines > MIN_SHARE * total:
        ways.append(f"--no-baselines saves about {approximate_time(baselines)}")
    if not ways:
        return None
    return f"to make it shorter: {'; '.join(ways)}"


def _smaller_side(experiment: Experiment) -> int | None:
    """Return half of the side of the images, if it can be set and is not too small."""
    side = getattr(experiment.data, "size", None)
    if not isinstance(side, int) or side < 2 * MIN_SIDE:
        return None
    return side // 2
