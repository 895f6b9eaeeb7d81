"""The rounds that a run directory holds: its newest checkpoint and its log."""

from __future__ import annotations

from pathlib import Path

from fedssl.core.console import Notify
from fedssl.core.errors import RunError
from fedssl.core.files.checked_lines import repair as repair_log
from fedssl.engine.checkpoints.store import Snapshot, Store
from fedssl.runs.rounds_log import read_rounds


def load_newest(folder: Path, store: Store, notify: Notify) -> Snapshot | None:
    """Return the newest intact checkpoint of a run directory; None if no run has started there.

    Raises RunError if the files of the directory do not fit together.
    """
    snapshot = store.resume(notify)
    rounds = repair_log(folder / "rounds.jsonl", notify)
    if snapshot is None:
        if rounds:
            raise RunError(
                f"{folder} has finished rounds but no checkpoint to resume from; nothing was "
                "changed. Restore its checkpoints from a backup, or choose another --dir"
            )
        return None
    if not (folder / "experiment.toml").is_file():
        raise RunError(
            f"{folder} has checkpoints but no experiment.toml that describes them; nothing was "
            "changed. Restore that file from a backup, or choose another --dir"
        )
    if rounds < snapshot.rounds:
        log = folder / "rounds.jsonl"
        notify(
            f"{log} has lost lines: it has {rounds} of the {snapshot.rounds} finished rounds. "
            "Training is resumed; the metrics of the other rounds are missing"
        )
    return snapshot


def raise_if_no_round_succeeded(folder: Path) -> None:
    """Raise RunError for a run in which no round had a valid upload: it has no model to show."""
    failed = [line["failed"] for line in read_rounds(folder / "rounds.jsonl")]
    if failed and all(failed):
        raise RunError(
            f"{folder}: no round had a valid upload, so nothing was learned. "
            "rounds.jsonl lists the reason for each client"
        )
