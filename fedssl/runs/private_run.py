"""Client-level differential privacy of a run directory: its ledger, its budget and its summary."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedssl.core.console import Notify, ignore_message
from fedssl.core.errors import ConfigError
from fedssl.engine.checkpoints.store import Snapshot
from fedssl.engine.privacy.accountant import Account, Plans, most_releases, noise_for
from fedssl.engine.privacy.ledger import Charge, Ledger, check_complete, read_charges
from fedssl.engine.privacy.merge import PrivateMerge, Spent
from fedssl.engine.round_rules import RoundRules
from fedssl.engine.uploads.validate import Schema
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.privacy_check import check_delta
from fedssl.runs.rounds_log import read_rounds


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

    Raise RunError if it lost lines. Call this before lines of the rounds log are removed: they show
    how many releases were made since the last checkpoint.
    """
    if not experiment.privacy.enabled:
        return None
    return Ledger(folder, max(last.releases, _logged_releases(folder)), notify)


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


def _logged_releases(folder: Path) -> int:
    """Return the largest number of releases in the rounds log."""
    logged = [0]
    for line in read_rounds(folder / "rounds.jsonl", ignore_message):
        logged.append(line.get("privacy", {}).get("releases", 0))
    return max(logged)


def describe(spent: Spent | Charge) -> str:
    """Return ε and δ as a clause."""
    if spent.epsilon is None:
        return "no ε: updates are clipped, without noise"
    return f"ε = {spent.epsilon:.4g} at δ = {spent.delta:g}"


def summarise(experiment: Experiment, folder: Path, last: Snapshot) -> dict[str, Any] | None:
    """Return the privacy of a run as plain values for results.json; None without [privacy].

    Raise RunError if the ledger lost lines. The `last` checkpoint has fewer rounds than planned if
    the budget was spent.
    """
    if not experiment.privacy.enabled:
        return None
    charges = list(read_charges(folder, ignore_message))
    check_complete(folder, len(charges), max(last.releases, _logged_releases(folder)))
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
