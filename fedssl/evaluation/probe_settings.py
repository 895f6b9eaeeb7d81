"""Apply settings to one probe, and reject probes and settings that cannot measure a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedssl.core.errors import ConfigError
from fedssl.core.suggestions import suggest
from fedssl.experiment.experiment import Experiment
from fedssl.probes import OF_TRAINING, PROBES, ProbeSettings


def reset_settings(probe: str) -> dict[str, Any]:
    """Return settings that a probe does not take from an experiment, with their defaults.

    The labels, epochs, lr and batch of an experiment are those of its linear probe; a probe that
    fine-tunes the whole model does not inherit them. A probe with protocols of its own does not
    inherit the protocol either.
    """
    settings: dict[str, Any] = {}
    if PROBES[probe].whole:
        settings = {"labels": 0, **dict.fromkeys(OF_TRAINING)}
    if PROBES[probe].protocols:
        settings["protocol"] = PROBES[probe].protocols[0]
    return settings


def check_probe(name: str) -> None:
    """Raise ConfigError if there is no probe of this name."""
    if name == "transfer":
        raise ConfigError(
            'there is no probe "transfer": to measure how well features transfer, use probe '
            '"linear" or "semi" on another data set, with --on NAME'
        )
    if name not in PROBES:
        known = "; known: " + ", ".join(PROBES)
        raise ConfigError(f'unknown probe "{name}"{suggest(name, PROBES) or known}')


def check_suits(probe: str, experiment: Experiment) -> None:
    """Raise ConfigError if a probe cannot measure the models that an experiment trains."""
    check_probe(probe)
    if PROBES[probe].learns == "nothing" and not experiment.method.method.classifies:
        name = experiment.to_dict()["method"]["name"]
        raise ConfigError(
            f'probe "{probe}" measures the classifier that a run has trained, but method "{name}" '
            'trains none: choose another probe, such as "linear"'
        )


def check_protocol(probe: str, protocol: str) -> None:
    """Raise ConfigError if a probe has protocols of its own, and this is none of them."""
    known = PROBES[probe].protocols
    if known and protocol not in known:
        raise ConfigError(
            f'probe "{probe}" has no protocol "{protocol}"; its protocols: {", ".join(known)}'
        )


def with_probe_settings(
    experiment: Experiment, probe: str, settings: Mapping[str, object]
) -> Experiment:
    """Return the experiment with settings for one probe; raise ConfigError for unused settings.

    Only `settings` are checked: those in the experiment are meant for several probes.
    """
    check_probe(probe)
    _check_used(experiment, probe, settings)
    changes = reset_settings(probe) | dict(settings)
    changed = experiment.with_changes({f"probe.{key}": value for key, value in changes.items()})
    check_suits(probe, changed)
    check_protocol(probe, changed.probe.protocol)
    return changed


def _check_used(experiment: Experiment, probe: str, settings: Mapping[str, object]) -> None:
    """Raise ConfigError for a setting that the probe, or its solver, would ignore."""
    uses = PROBES[probe].uses
    for key in settings:
        if key in ProbeSettings.model_fields and key not in uses:
            raise ConfigError(
                f'probe "{probe}" has no setting "{key}"; its settings: {", ".join(uses) or "none"}'
            )
    if "solver" not in uses or settings.get("solver", experiment.probe.solver) != "lbfgs":
        return
    ignored = [key for key in ("protocol", *OF_TRAINING) if key in settings]
    if ignored:
        raise ConfigError(
            f'solver = "lbfgs" does not use {", ".join(ignored)}: leave that out, or set '
            'solver = "protocol"'
        )
