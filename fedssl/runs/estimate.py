"""Estimate the time of a run without starting it: no directory is created or changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedssl.core.console import approximate_time, ignore_message, print_to_stderr
from fedssl.core.devices.precision import numerics
from fedssl.core.devices.select import resolve_device
from fedssl.evaluation.evaluate import Evaluation
from fedssl.experiment.client_data import partition_data
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.federation_setup import Federation
from fedssl.runs.directories import default_dir, directory_line, titled_experiment
from fedssl.runs.given_inputs import read_images
from fedssl.runs.resume_checks import check_resumable
from fedssl.runs.rounds_log import read_rounds
from fedssl.runs.time_estimate import estimate_run
from fedssl.runs.workload import adapter_line, shorter, workload
from fedssl.training.trainer import resolve_precision

UNKNOWN = (
    "the time is unknown before the run starts on this device or with this method: the run prints "
    "an estimate after its first clients"
)


class RunEstimate(NamedTuple):
    """What a run would train, and how long that takes."""

    folder: Path  # that it would be written to
    seconds: float | None  # of the whole command; None if unknown
    lines: list[str]
    whole: float | None = None  # seconds of a run from its first round on; None if unknown

    def values(self) -> dict[str, Any]:
        """Return the estimate as plain values."""
        return {"dir": str(self.folder), "seconds": self.seconds, "lines": self.lines}


def estimate(
    experiment: str | Path | Experiment,
    dir: str | Path | None = None,
    device: str = "auto",
    data_dir: str | Path | None = None,
    *,
    quiet: bool = False,
    set: Mapping[str, Any] | None = None,
) -> RunEstimate:
    """Return how long `fedssl.run` with these arguments takes, from a few trial steps."""
    title, original, chosen = titled_experiment(experiment, set or {})
    on = resolve_device(device)
    folder = default_dir(title, chosen, original, on) if dir is None else Path(dir)
    check_resumable(chosen, folder, on, ignore_message)
    root = Path(data_dir or "data")
    notify = ignore_message if quiet else print_to_stderr
    images = read_images(chosen, root, None, notify)
    seen, owners = partition_data(chosen, images.data, notify)
    lines = [directory_line(title, chosen, folder, on)]
    done = sum(1 for _ in read_rounds(folder / "rounds.jsonl"))
    if done >= chosen.rounds:
        return RunEstimate(folder, 0.0, [*lines, "all rounds are finished already"])
    exact = resolve_precision(chosen.train.precision, on) == "fp32"
    with numerics(on, chosen.train.deterministic, exact):
        federation = Federation.build(chosen, seen, owners, public=images.public, device=on)
        evaluation = Evaluation(chosen, images.data, on, other=images.other)
        training, later = estimate_run(federation, evaluation, folder, done)
    lines.append(workload(title, federation, done))
    adapters = adapter_line(federation.trainer.method, federation.schema)
    if adapters is not None:
        lines.append(adapters)
    if training is None:
        return RunEstimate(folder, None, [*lines, UNKNOWN])
    all_rounds = training * chosen.rounds / (chosen.rounds - done)
    lines.append(f"estimated time: {later.text(training, all_rounds)}")
    advice = shorter(federation, training, all_rounds, later)
    if advice is not None:
        lines.append(advice)
    seconds = later.total(training, all_rounds)
    return RunEstimate(folder, seconds, lines, later.total(all_rounds, all_rounds))


def with_seeds(one: RunEstimate, seeds: int) -> RunEstimate:
    """Return the estimate for several seeds, one run each, from that for the first.

    Runs of the other seeds that have begun already are counted as whole.
    """
    if seeds == 1:
        return one
    if one.seconds is None or one.whole is None:
        return one._replace(seconds=None, lines=[*one.lines, "the time of other seeds is unknown"])
    seconds = one.seconds + (seeds - 1) * one.whole
    lines = [*one.lines, f"{seeds} seeds take {approximate_time(seconds)}"]
    return RunEstimate(one.folder, seconds, lines, one.whole)
