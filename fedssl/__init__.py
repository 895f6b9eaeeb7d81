"""fedssl: pre-train vision backbones on unlabelled images that never leave their owners."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedssl.core.version import __version__

if TYPE_CHECKING:
    from fedssl.core.errors import FedsslError
    from fedssl.downstream.backbone import load_backbone
    from fedssl.downstream.classify.classifier import load_classifier
    from fedssl.experiment.experiment import Experiment
    from fedssl.paper_tables.reproduce import reproduce, sweep
    from fedssl.runs.callbacks import Callback
    from fedssl.runs.run import Run, run

__all__ = [
    "Callback",
    "Experiment",
    "FedsslError",
    "Run",
    "__version__",
    "load_backbone",
    "load_classifier",
    "reproduce",
    "run",
    "sweep",
]

# Imported on first access: torch takes seconds to import, and `fedssl --help` does not need it.
_MODULES = {
    "Callback": "fedssl.runs.callbacks",
    "Experiment": "fedssl.experiment.experiment",
    "FedsslError": "fedssl.core.errors",
    "Run": "fedssl.runs.run",
    "load_backbone": "fedssl.downstream.backbone",
    "load_classifier": "fedssl.downstream.classify.classifier",
    "reproduce": "fedssl.paper_tables.reproduce",
    "run": "fedssl.runs.run",
    "sweep": "fedssl.paper_tables.reproduce",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
