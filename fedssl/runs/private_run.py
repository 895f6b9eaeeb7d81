"""Client-level differential privacy of a run directory: its ledger, its budget and its summary."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedssl.core.console import Notify, ignore_message
from fedssl.core.errors import ConfigError, RunError
from fedssl.engine.checkpoints.store import Snapshot
from fedssl.engine.privacy.accountant import Account, Plans, most_releases, noise_for
from fedssl.engine.privacy.ledger import NAME, Charge, Ledger, check_complete, read_charges
from fedssl.engine.privacy.merge import PrivateMerge, Spent
from fedssl.engine.round_rules import RoundRules
from fedssl.engine.uploads.validate import Schema
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.privacy_check import check_delta
from fedssl.runs.rounds_log import read_rounds

# With accuracies, whose images and labels no noise hides.
UNCOVERED = (
    "ε does not cover the accuracies: they depend, without noise, on the labelled images, which in "
    "a simulation may be those of clients"
)


def plans_of(experiment: Experiment, clients: Sequence[str]) -> Plans:
    """Return the function from a round to the clients that it asks."""

    def asked(round: int) -> Sequence[str]:
        return list(experiment.topology.plan(clients, round, experiment.seed).site_of)

    return asked


def noise_of(experiment: Experiment, clients: Sequence[str]) -> float:
    """Return the noise of each release, in multiples of the clip.

    If the settings have none, it is the least with which all rounds keep within the budget.
    """
    privacy = experiment.privacy
    if privacy.noise is not None:
        return privacy.noise
    assert privacy.epsilon is not None
    releases = most_releases(plans_of(experiment, clients), experiment.rounds)
    return noise_for(privacy.epsilon, privacy.delta, releases)


def check_budget(experiment: Experiment, clients: Sequence[str]) -> None:
    """Raise ConfigError if δ is too large, or if the budget does not suffice for one round."""
    privacy = experiment.privacy
    if not privacy.enabled:
        return
    check_delta(privacy, len(clients))
    if privacy.epsilon is None:
        return
    noise = noise_of(experiment, clients)
    account = Account(plans_of(experiment, clients), privacy.delta)
    first = account.epsilon_after(0, noise)
    if first > privacy.epsilon:
        raise ConfigError(
            f"one round costs ε = {first:.3g}, more than the budget privacy.epsilon = "
            f"{privacy.epsilon:g}: raise privacy.noise (now {noise:g}), or the budget"
        )


def open_ledger(
    experiment: Experiment, folder: Path, last: Snapshot, notify: Notify
) -> Ledger | None:
    """Return the ledger of a run with [privacy], None of others.

    Raise RunError if it lost lines, or is that of another run. Call this before lines of the rounds
    log are removed: they show how many releases were made since the last checkpoint.
    """
    if not experiment.privacy.enabled:
        return None
    logged = _logged_epsilons(folder)
    ledger = Ledger(folder, max([last.releases, *logged]), notify)
    _check_is_of_run(experiment, folder, ledger.charges, logged)
    return ledger


def private_merge(
    experiment: Experiment,
    clients: Sequence[str],
    ledger: Ledger | None,
    schema: Schema,
    rules: RoundRules,
) -> PrivateMerge | None:
    """Return the merge of a run with a ledger, None of others."""
    if ledger is None:
        return None
    return PrivateMerge(
        experiment.algorithm,
        schema,
        experiment.privacy,
        noise=noise_of(experiment, clients),
        ledger=ledger,
        plans=plans_of(experiment, clients),
        enough=lambda valid, asked: rules.too_few(valid, asked) is None,
    )


def _logged_epsilons(folder: Path) -> dict[int, float | None]:
    """Return ε by the number of releases, from the rounds log."""
    logged: dict[int, float | None] = {}
    for line in read_rounds(folder / "rounds.jsonl", ignore_message):
        if "privacy" in line:
            logged[line["privacy"]["releases"]] = line["privacy"]["epsilon"]
    return logged


def _check_is_of_run(
    experiment: Experiment,
    folder: Path,
    charges: Sequence[Charge],
    logged: Mapping[int, float | None],
) -> None:
    """Raise RunError if a complete ledger contradicts the settings of its run, or the rounds log.

    Otherwise a file that was restored from another directory could make ε too small.
    """
    privacy = experiment.privacy
    problem = None
    for number, charge in enumerate(charges, 1):
        noise = charge.noise if privacy.noise is None else privacy.noise
        if (charge.clip, charge.noise, charge.delta) != (privacy.clip, noise, privacy.delta):
            problem = f"line {number} has other settings than the run"
        elif number in logged and not _nearly_equal(charge.epsilon, logged[number]):
            problem = f"line {number} has another ε than rounds.jsonl after {number} releases"
        if problem is not None:
            raise RunError(
                f"{folder / NAME} is not the ledger of this run: {problem}. Nothing was changed. "
                "Restore the file from a backup, or start again in a new directory"
            )


def _nearly_equal(a: float | None, b: float | None) -> bool:
    """True if two values of ε are equal, up to the rounding of versions of the accountant."""
    if a is None or b is None:
        return a is b
    return math.isclose(a, b, rel_tol=1e-6)


def announce_end(experiment: Experiment, folder: Path, last: Snapshot, notify: Notify) -> None:
    """Print why training ends, if it is before the last round.

    Raise RunError if it is before the first one: the model is not trained.
    """
    if last.rounds == experiment.rounds:
        return
    reason = (
        "another one would exceed the budget of ε = "
        f"{experiment.privacy.epsilon:g} (privacy.epsilon)"
    )
    if last.rounds == 0:
        raise RunError(
            f"{folder}: no round was finished, and {reason}, because rounds that were "
            "interrupted are charged too. Start again in a new directory, or without a budget"
        )
    notify(f"training ends after round {last.rounds} of {experiment.rounds}: {reason}")


def describe(spent: Spent | Charge) -> str:
    """Return ε and δ as a clause."""
    if spent.epsilon is None:
        return "no ε: updates are clipped, without noise"
    return f"ε = {spent.epsilon:.4g} at δ = {spent.delta:g}"


def summarise(experiment: Experiment, folder: Path, last: Snapshot) -> dict[str, Any] | None:
    """Return the privacy of a run as plain values for results.json; None without [privacy].

    Raise RunError if the ledger lost lines, or is that of another run. The `last` checkpoint has
    fewer rounds than planned if the budget was spent.
    """
    if not experiment.privacy.enabled:
        return None
    charges = list(read_charges(folder, ignore_message))
    logged = _logged_epsilons(folder)
    check_complete(folder, len(charges), max([last.releases, *logged]))
    _check_is_of_run(experiment, folder, charges, logged)
    if not charges:
        return None
    newest = charges[-1]
    return {
        "unit": "client",
        "epsilon": newest.epsilon,
        "delta": newest.delta,
        "noise": newest.noise,
        "clip": newest.clip,
        "releases": len(charges),
        "budget_spent": last.rounds < experiment.rounds,
    }


def note(summary: dict[str, Any]) -> str:
    """Return a remark on the privacy of a run for its results and exported models."""
    text = "client-level differential privacy: no guarantee, updates were clipped without noise"
    if summary["epsilon"] is not None:
        text = (
            "client-level differential privacy of the trained model: "
            f"ε = {summary['epsilon']:.4g} at δ = {summary['delta']:g}"
        )
    if summary["budget_spent"]:
        text += "; training ended early because the budget was spent"
    return text
