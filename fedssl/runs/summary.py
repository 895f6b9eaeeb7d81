"""Summarise run directories: state, accuracy, time and differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from fedssl.core.console import Notify, ignore_message, shortened
from fedssl.core.errors import ConfigError, FedsslError
from fedssl.core.files import integrity
from fedssl.core.files.lock import is_locked
from fedssl.core.missing_paths import no_folder
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.plain_values import differences
from fedssl.runs.directories import training_values
from fedssl.runs.resume_checks import EXPERIMENT, read_experiment
from fedssl.runs.rounds_log import read_rounds
from fedssl.runs.view_names import PRESET, name_preset

MAX_DIFFERENCES = 4  # of a run that are listed


class RunSummary(NamedTuple):
    """What one line of `fedssl runs` shows about a run directory."""

    folder: Path
    experiment: Experiment
    rounds: int  # that are finished
    seconds: float  # of training
    results: Mapping[str, Any]  # results.json; empty if the run is not measured
    running: bool
    changed: datetime  # when the log was last written

    @property
    def state(self) -> str:
        """Return "finished", "running, 3 of 40" or "stopped, 3 of 40"."""
        progress = f"{self.rounds} of {self.experiment.rounds}"
        if self.running:
            return f"running, {progress}"
        if self.rounds < self.experiment.rounds and not self.results:
            return f"stopped, {progress}"
        return "finished" if self.results else "not measured"

    def accuracy(self, probe: str) -> float | None:
        """Return the accuracy of the run in percent; None if it was not measured."""
        row = self.results.get("table", {}).get("this run", {})
        accuracy: float | None = row.get(probe, {}).get("mean")
        return accuracy


def find_runs(root: Path) -> list[Path]:
    """Return the run directories directly in a folder, and the folder itself if it is one."""
    if (root / EXPERIMENT).is_file():
        return [root]
    return sorted(path.parent for path in root.glob(f"*/{EXPERIMENT}"))


def summarise(folder: Path) -> RunSummary:
    """Return the summary of a run directory; raise FedsslError if it cannot be read."""
    experiment = read_experiment(folder, ignore_message)
    log = folder / "rounds.jsonl"
    rounds = 0
    seconds = 0.0
    for line in read_rounds(log, ignore_message):
        rounds = line["round"]
        seconds += line["seconds"]
    newest = log if log.is_file() else folder / EXPERIMENT
    return RunSummary(
        folder,
        experiment,
        rounds,
        seconds,
        results=_results(folder, experiment),
        running=is_locked(folder),
        changed=datetime.fromtimestamp(newest.stat().st_mtime),
    )


def _results(folder: Path, experiment: Experiment) -> Mapping[str, Any]:
    try:
        results = integrity.read_json(folder, "results.json") or {}
    except (ValueError, FedsslError):
        return {}
    return results if covers_all_rounds(results, experiment) else {}


def covers_all_rounds(results: Mapping[str, Any], experiment: Experiment) -> bool:
    """True if the results are of all rounds, or of all that the privacy budget allowed."""
    ended_early = results.get("privacy", {}).get("budget_spent", False)
    return ended_early or results.get("rounds") == experiment.rounds


def already_finished(folder: Path, experiment: Experiment) -> str:
    """Return the line for a run that has nothing left to train or measure."""
    rounds = summarise(folder).rounds
    text = (
        f"{folder} was finished already, after {rounds} rounds, so nothing was trained or "
        "measured. "
    )
    if rounds < experiment.rounds:
        return f"{text}Its privacy budget is spent; to start again, choose another --dir"
    return (
        f"{text}To train more rounds, add --set rounds={2 * rounds} --dir {folder}; "
        "to start again, choose another --dir"
    )


def read_runs(paths: Sequence[Path], notify: Notify) -> list[RunSummary]:
    """Return the runs in some directories, each once.

    Runs without an accuracy are skipped with a message, except those that are named themselves.
    """
    runs: dict[Path, RunSummary] = {}
    for path in paths:
        if not path.is_dir():
            raise ConfigError(no_folder(path, ": name the directories of finished runs"))
        folders = find_runs(path)
        if not folders:
            raise ConfigError(
                f"{path} is not a run directory and contains none: name directories that "
                "`fedssl run` has written; `fedssl runs` lists them"
            )
        for folder in folders:
            run = summarise(folder)
            if folder != path and not run.results.get("table"):
                notify(f"{folder} is left out: it has no accuracy ({run.state})")
                continue
            runs.setdefault(folder.resolve(), run)
    return list(runs.values())


class Difference(NamedTuple):
    """How a run differs from the most similar run before it; both are "" for a first run."""

    text: str  # "train.lr=0.01"
    other: str  # the name of that run


def nearest_differences(runs: Sequence[RunSummary]) -> list[Difference]:
    """Return for each run how it differs from the most similar run before it.

    The first run of its kind has no difference. Of equally similar ones, the first is taken.
    """
    found = []
    for position, run in enumerate(runs):
        options = [(_difference(other, run), other.folder.name) for other in runs[:position]]
        fewest, other = min(options, key=lambda option: len(option[0]), default=({}, ""))
        text = _listed(fewest)
        if not text:
            other = ""
        found.append(Difference(text, other))
    return found


def _difference(old: RunSummary, new: RunSummary) -> dict[str, Any]:
    """Return the trained settings that differ, with the values of the new run."""
    values = training_values(new.experiment)
    changed = differences(training_values(old.experiment), values)
    return name_preset({key: after for key, (_, after) in changed.items()}, values)


def _listed(changed: Mapping[str, Any]) -> str:
    if len(changed) > 3 * MAX_DIFFERENCES:
        return ""  # another experiment, not a variation
    words = []
    for key, value in changed.items():
        words.append(f"views {value}" if key == PRESET else f"{key}={value}")
    return ", ".join(shortened(words, MAX_DIFFERENCES))
