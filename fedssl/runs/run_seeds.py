"""Run an experiment with several seeds, and judge them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedssl.core.console import ignore_message, print_to_stderr
from fedssl.core.errors import ConfigError
from fedssl.evaluation.outcomes import read_outcomes
from fedssl.evaluation.verdict import Verdict, judge
from fedssl.experiment.experiment import load
from fedssl.runs.label_counts import label_counts
from fedssl.runs.run import Run, run

PRIVACY_OF_SEEDS = (
    "warning: ε of each run covers that run only; all of them together cost more, because each one "
    "releases models of the same clients"
)


def run_seeds(
    experiment: str | Path,
    seeds: int,
    dir: str | Path | None = None,
    device: str = "auto",
    *,
    data_dir: str | Path | None = None,
    quiet: bool = False,
    changes: Mapping[str, Any] | None = None,
    track: Sequence[str] = (),
) -> list[Run]:
    """Run an experiment with this many seeds, counted from its own, and return the runs.

    Each seed has its own run directory, and its own run in every tracker. With several seeds, the
    directories in `dir` are named by the seed.
    """
    changed = dict(changes or {})
    run_one = partial(run, experiment, device=device, data_dir=data_dir, quiet=quiet, track=track)
    if seeds == 1:
        return [run_one(dir, set=changed)]
    loaded = load(experiment, changed)
    first = loaded.seed
    notify = ignore_message if quiet else print_to_stderr
    notify(f"{seeds} seeds, one run each; estimated times and times left are those of one run")
    if loaded.privacy.enabled:
        print_to_stderr(PRIVACY_OF_SEEDS)
    runs = []
    for number, seed in enumerate(range(first, first + seeds), 1):
        notify(f"run {number} of {seeds}: seed {seed}")
        folder = None if dir is None else Path(dir) / f"seed{seed}"
        seeded = changed | {"seed": seed}
        runs.append(run_one(folder, set=seeded))
    return runs


def judge_runs(runs: Sequence[Run]) -> Verdict | None:
    """Return the verdict over the seeds of an experiment; None if nothing was measured."""
    if not all(finished.results.get("table") for finished in runs):
        return None
    seeds = []
    for finished in runs:
        outcomes = read_outcomes(finished.dir)
        if not outcomes:
            raise ConfigError(
                f"{finished.dir} has no outcomes.safetensors, because an earlier version measured "
                "it: delete its results.json and run it again, which trains nothing"
            )
        seeds.append(outcomes)
    return judge(seeds, label_counts(runs[0].results))
