"""A run that is interrupted, resumed and finished with a tracker, for tests of the trackers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from factories import bright_dataset, interrupted_in_round, make_experiment

import fedssl
from fedssl.runs.local import Interrupted

EXPERIMENT = make_experiment(rounds=4, probe={"every": 2})


def start(folder: Path, track: str, **changes: Any) -> fedssl.Run:
    """Run the experiment to its end, or resume it."""
    return fedssl.run(
        EXPERIMENT, folder, "cpu", dataset=bright_dataset(), quiet=True, track=track, **changes
    )


def interrupted_then_finished(folder: Path, track: str) -> fedssl.Run:
    """Lose round 3 after it was tracked, then resume after round 2 and finish.

    A round is lost if the process is killed before the next checkpoint, so nothing is saved at the
    interruption.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedssl.runs.session.Session._close", lambda *values: None)
        with interrupted_in_round(4), pytest.raises(Interrupted):
            start(folder, track)
    for path in (folder / "checkpoints").glob("00003.*"):
        path.unlink()
    return start(folder, track)
