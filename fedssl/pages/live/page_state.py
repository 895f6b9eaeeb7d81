"""Compute the state that the live page shows, from the files of a run directory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedssl.pages.live.history import History
from fedssl.pages.live.run_facts import Facts, Signs
from fedssl.pages.live.run_status import run_status, total_rounds
from fedssl.runs.live_file import LiveState

MIN_SECONDS = 1.0  # of a round, before its images per second are shown
MAX_FAILED_ROUNDS = 5  # that are listed


def page_state(
    folder: Path, facts: Facts, history: History, signs: Signs, damaged: int, now: float
) -> dict[str, Any]:
    """Return the head of the page as plain values; `damaged` lines of the log differ from their
    copy.
    """
    status = run_status(facts, history, signs, now)
    rounds = total_rounds(facts, history, signs)
    live = signs.live if signs.live_is_current else None
    in_round = live is not None and live.round > history.rounds
    return {
        "title": folder.absolute().name,
        "names": facts.title,
        "on_flower": facts.on_flower,
        "private": facts.private,
        "state": status.state,
        "label": status.label,
        "detail": status.detail,
        "now": now,
        "rounds": rounds,
        "finished": history.rounds,
        "round": live.round if live is not None and in_round else history.rounds,
        "in_round": in_round,
        "replied": live.replied if live is not None and in_round else 0,
        "asked": len(live.clients) if live is not None and in_round else 0,
        "elapsed": _elapsed(history, live, now),
        "remaining": _remaining(history, live, rounds, now),
        "remaining_of": live.ends_of if live is not None and live.ends is not None else "training",
        "images_per_s": _images_per_s(history, live),
        "loss": _last(history, "loss"),
        "knn": _last(history, "knn"),
        "epsilon": _last(history, "epsilon"),
        "budget": facts.epsilon,
        "delta": history.delta,
        "warnings": _warnings(history, damaged),
    }


def _last(history: History, name: str) -> float | None:
    """Return the newest value of a quantity."""
    for point in reversed(history.points):
        value: float | None = getattr(point, name)
        if value is not None:
            return value
    return None


def _elapsed(history: History, live: LiveState | None, now: float) -> float:
    """Return the seconds of training, with those of the round under way."""
    if live is None or live.round <= history.rounds or live.phase != "training":
        return history.seconds
    return history.seconds + max(0.0, now - live.round_started)


def _remaining(history: History, live: LiveState | None, rounds: int, now: float) -> float | None:
    """Return the seconds that are left while a process trains; None if they are unknown."""
    if live is None or live.phase not in ("training", "measuring"):
        return None
    if live.ends is not None:
        return max(0.0, live.ends - now)
    per_round = history.seconds_per_round
    if per_round is None:
        return None
    return per_round * max(0, rounds - history.rounds)


def _images_per_s(history: History, live: LiveState | None) -> float | None:
    """Return the images per second of the round under way; those of the last round before that."""
    if live is not None and live.phase == "training" and live.round > history.rounds:
        images = sum(client.images for client in live.clients.values())
        seconds = live.changed - live.round_started
        if images and seconds >= MIN_SECONDS:
            return images / seconds
    return history.images_per_s or None


def _warnings(history: History, damaged: int) -> list[dict[str, Any]]:
    """Return the warnings, with the number of the round or 0 for all rounds."""
    warnings = []
    if history.note is not None:
        warnings.append({"round": 0, "text": history.note})
    for warning in history.warnings:
        warnings.append({"round": warning.round, "text": warning.text})
    for number in history.failed[-MAX_FAILED_ROUNDS:]:
        warnings.append({"round": number, "text": "no upload was accepted: the round failed"})
    bad_lines = damaged + history.unreadable
    if bad_lines:
        text = f"rounds.jsonl is damaged (lines: {bad_lines}); `fedssl run` repairs it"
        warnings.append({"round": 0, "text": text})
    return warnings


def count_states(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """Return the number of clients in each state, and of those with a problem."""
    counts = Counter(row["state"] for row in rows.values())
    counts["problem"] = sum(row["problem"] for row in rows.values())
    return dict(counts)
