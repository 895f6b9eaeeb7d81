"""Determine the state of a run from the files of its directory and its lock."""

from __future__ import annotations

from typing import NamedTuple

from fedssl.core.console import duration
from fedssl.pages.live.history import History
from fedssl.pages.live.run_facts import Facts, Signs
from fedssl.runs.live_file import LiveState

HEARTBEAT_TIMEOUT = 60.0  # seconds: live.json is written more often
MIN_STALL = 120.0  # seconds without news; longer where rounds are long
ROUNDS_WITHOUT_NEWS = 3.0  # rounds, in which nothing happens, before a run counts as stalled
FIRST_ROUND_STALL = 900.0  # seconds: its length is unknown, and it may compile first
RESUMES = "The same command resumes it."


class Status(NamedTuple):
    """The state of a run, and a sentence about it."""

    state: str  # waiting, training, measuring, finished, stopped, stalled, died or failed
    label: str
    detail: str


def total_rounds(facts: Facts, history: History, signs: Signs) -> int:
    """Return the number of rounds of a run; 0 if it is unknown."""
    if signs.live is not None and signs.live_is_current and signs.live.rounds:
        return signs.live.rounds
    return facts.rounds or history.of


def run_status(facts: Facts, history: History, signs: Signs, now: float) -> Status:
    """Return the state of a run."""
    if not signs.exists:
        return Status("waiting", "Waiting", "The directory does not exist yet.")
    if not signs.locked:
        return _without_process(facts, history, signs)
    if signs.live is not None and signs.live_is_current:
        return _with_news(history, signs, signs.live, now)
    return _between_sessions(facts, history, signs)


def _with_news(history: History, signs: Signs, live: LiveState, now: float) -> Status:
    """Return the state of a run whose process writes live.json."""
    silent = now - signs.live_time
    if silent > HEARTBEAT_TIMEOUT:
        return Status(
            "stalled", "Stalled", f"The process has written nothing for {duration(silent)}."
        )
    if live.phase == "joining":
        connected = len(live.connected or {})
        text = f"{connected} of {live.expected} clients are connected."
        return Status("waiting", "Waiting for clients", text)
    if live.phase in ("stopped", "failed"):
        return Status("stopped", "Stopping", "Finished rounds are being saved.")
    if live.phase == "measuring":
        return Status("measuring", "Measuring", f"The model after round {live.round} is measured.")
    if not live.round:
        return Status("waiting", "Starting", "Training is being prepared.")
    quiet = now - live.changed
    if quiet > _longest_silence(history):
        return Status(
            "stalled", "Stalled", f"No client has started or replied for {duration(quiet)}."
        )
    return Status("training", "Training", "")


def _longest_silence(history: History) -> float:
    """Return after how many seconds without news a run counts as stalled."""
    seconds = history.seconds_per_round
    if seconds is None:
        return FIRST_ROUND_STALL
    return max(MIN_STALL, ROUNDS_WITHOUT_NEWS * seconds)


def _between_sessions(facts: Facts, history: History, signs: Signs) -> Status:
    """Return the state of a run whose process does not train rounds at present."""
    trained = 0 < facts.rounds <= history.rounds
    ended_early = signs.live is not None and signs.live.phase == "trained"
    if trained or ended_early:
        text = "Training is done; the backbone is exported and measured."
        if signs.baseline is not None:
            text = f"Training is done; the baseline {signs.baseline}, is trained for comparison."
            if "," not in signs.baseline:
                text = f"Training is done; the baseline {signs.baseline} is trained for comparison."
        return Status("measuring", "Measuring", text)
    if history.rounds:
        return Status("waiting", "Resuming", f"After round {history.rounds}; images are read.")
    return Status("waiting", "Starting", "Images are read, and models are prepared.")


def _without_process(facts: Facts, history: History, signs: Signs) -> Status:
    """Return the state of a run that no process works on."""
    results = signs.results
    if results is not None and history.rounds:
        if results.budget_spent:
            text = f"Training ended after round {history.rounds}: the privacy budget is spent."
            return Status("finished", "Finished", text)
        if results.rounds >= facts.rounds:
            return Status("finished", "Finished", _sentence(results.verdict))
    live = signs.live
    if live is not None and live.phase == "failed":
        return Status("failed", "Failed", _sentence(live.reason or "an unknown error"))
    if live is not None and live.phase in ("training", "measuring", "joining"):
        text = "Its process ended without a message: it was killed, or out of memory. "
        return Status("died", "Process ended", text + RESUMES)
    if not history.rounds:
        return Status("waiting", "Waiting", "No round is finished, and no process is training it.")
    if 0 < facts.rounds <= history.rounds:
        return Status("stopped", "Not measured", f"All rounds are trained. {RESUMES}")
    return Status("stopped", "Stopped", f"It stopped after round {history.rounds}. {RESUMES}")


def _sentence(text: str) -> str:
    """Return a text with a capital letter and a full stop; "" for an empty one."""
    if not text:
        return ""
    return f"{text[0].upper()}{text[1:].rstrip('.')}."
