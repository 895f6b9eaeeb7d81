"""Setting aside what other code has made, so that it is made anew; nothing is deleted."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

from fedssl.lock import locked
from fedssl.provenance import code
from fedssl.reproduce import found
from fedssl.reproduce.plan import Training, Want


def set_aside(wanted: Iterable[Want]) -> None:
    """Rename trainings, finished or not, and measurements that the code of today has not made. What it has made stays:
    so the same command goes on after a kill."""
    for want in wanted:
        if want.training is None or want.measure is None or not want.training.folder.is_dir():
            continue
        if found.trained_by(want.training) - {code()}:
            _rename_folder(want.training)
        elif (made := found.measured(want.training, want.measure)) is not None and found.made_by(made) != code():
            file = want.training.folder / found.MEASURES / want.measure.file
            file.rename(_free(file, found.made_by(made)))


def _rename_folder(training: Training) -> None:
    (training.folder / found.MEASURES).mkdir(exist_ok=True)
    with locked(training.folder), locked(training.folder / found.MEASURES):  # nobody is at work there
        training.folder.rename(_free(training.folder, "-".join(sorted(found.trained_by(training)))))


def _free(path: Path, made: str) -> Path:
    """PATH.by-CODE, or with a number behind it."""
    names = (f"{path.name}.by-{made}" + (f"-{i}" if i else "") for i in itertools.count())
    return next(path.with_name(name) for name in names if not path.with_name(name).exists())
