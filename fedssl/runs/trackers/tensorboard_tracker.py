"""Track a run with TensorBoard: event files in the folder `tensorboard` of the run directory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedssl.runs.callbacks import RunInfo
from fedssl.runs.trackers.numbers import flat_settings
from fedssl.runs.trackers.state import State
from fedssl.runs.trackers.tracker import Tracker, run_name, tags_of

FOLDER = "tensorboard"
FINAL_METRICS = ("final/knn", "final/linear")  # columns of the page of hyper-parameters


class TensorBoardTracker(Tracker):
    """Writes event files. Rounds that are trained again replace the earlier ones."""

    _writer: Any

    def open(self, run: RunInfo, state: State) -> State:
        """Start an event file, after the events of the finished rounds."""
        from torch.utils.tensorboard import SummaryWriter

        self._events = run.folder / FOLDER
        sent = 0
        purge = None
        if any(self._events.glob("events.*")):
            sent = min(state.rounds, run.finished)
            purge = sent + 1  # later events are of rounds that will be trained again
        self._writer = SummaryWriter(str(self._events), purge_step=purge)
        self._write_settings(run)
        return state._replace(rounds=sent)

    def _write_settings(self, run: RunInfo) -> None:
        """Write the settings as hyper-parameters, and the name and tags as text."""
        from torch.utils.tensorboard.summary import hparams

        settings = flat_settings(run.experiment.to_dict())
        for summary in hparams(settings, dict.fromkeys(FINAL_METRICS, 0.0)):
            self._writer.file_writer.add_summary(summary)
        tags = ", ".join(f"{key} {value}" for key, value in tags_of(run.experiment).items())
        self._writer.add_text("run", f"{run_name(run)}: {tags}", 0)
        self._writer.flush()

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write the numbers of a round."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def log_results(self, step: int, numbers: Mapping[str, float], verdict: str) -> None:
        """Write the final numbers at the last round."""
        if verdict:
            self._writer.add_text("verdict", verdict, step)
        self.log(step, numbers)

    def disconnect(self) -> None:
        """Close the event file."""
        self._writer.close()

    def location(self) -> str:
        """Return the folder, and the command that shows it."""
        return f"{self._events} (tensorboard --logdir {self._events.parent})"
