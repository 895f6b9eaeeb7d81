"""Read the experiment of an app, after the modules that define its names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedssl.core.user_modules import import_modules
from fedssl.experiment.experiment import Experiment


def read_experiment(experiment: Experiment | str | Path, imports: Sequence[str]) -> Experiment:
    """Return an experiment or that of a TOML file.

    `imports` are imported first: dotted names of modules, or files in the folder of the TOML file.
    """
    if isinstance(experiment, Experiment):
        import_modules(imports)
        return experiment
    path = Path(experiment)
    import_modules(imports, path.parent)
    return Experiment.from_file(path)
