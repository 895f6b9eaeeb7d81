"""Trackers: callbacks that send a run to TensorBoard, MLflow or Weights & Biases.

Nothing of these libraries is imported here, so that names and missing extras are reported at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from fedssl.core.console import Notify
from fedssl.core.errors import ConfigError
from fedssl.core.suggestions import suggest

if TYPE_CHECKING:
    from fedssl.runs.trackers.tracker import Tracker


class _Choice(NamedTuple):
    """Where a tracker is defined, and the package that it needs."""

    module: str
    cls: str
    package: str


TRACKERS = {
    "tensorboard": _Choice("tensorboard_tracker", "TensorBoardTracker", "tensorboard"),
    "mlflow": _Choice("mlflow_tracker", "MLflowTracker", "mlflow"),
    "wandb": _Choice("wandb_tracker", "WandbTracker", "wandb"),
}


def tracker_names(track: str | Iterable[str]) -> list[str]:
    """Return the names of trackers, without repetitions; each text may be a comma-separated list.

    Raise ConfigError for a name that no tracker has, and for a tracker whose package is missing.
    """
    texts = [track] if isinstance(track, str) else list(track)
    names: dict[str, None] = {}
    for text in texts:
        for name in text.split(","):
            if name.strip():
                names[name.strip()] = None
    for name in names:
        if name not in TRACKERS:
            known = f"; known: {', '.join(TRACKERS)}"
            raise ConfigError(f'unknown tracker "{name}"{suggest(name, TRACKERS) or known}')
        if find_spec(TRACKERS[name].package) is None:
            raise ConfigError(
                f"{TRACKERS[name].package} is not installed: "
                f'in a clone of fedssl, run pip install ".[{name}]"'
            )
    return list(names)


def make_trackers(track: str | Iterable[str], notify: Notify) -> list[Tracker]:
    """Return new trackers for one run; raise ConfigError if one of them cannot be used."""
    trackers: list[Tracker] = []
    for name in tracker_names(track):
        choice = TRACKERS[name]
        cls = getattr(import_module(f"{__name__}.{choice.module}"), choice.cls)
        cls.check()
        trackers.append(cls(name, notify))
    return trackers
