"""The table of clients on the live page."""

from __future__ import annotations

from typing import Any

from fedssl.pages.live.history import ClientHistory, History
from fedssl.pages.live.run_facts import Facts, Signs
from fedssl.runs.live_file import LiveClient, LiveState

NEVER_ASKED = ClientHistory()
PROBLEMS = {"dropped", "offline"}
DIGITS = 5


def client_rows(facts: Facts, history: History, signs: Signs) -> dict[str, dict[str, Any]]:
    """Return the row of each client, by name.

    A row has the state: waiting, training, replied, dropped, offline, or idle for one that is not
    part of the round. `since` is when the state began or its node was seen last, 0 if unknown.
    """
    live = signs.live if signs.live_is_current else None
    names = dict.fromkeys((*facts.clients, *history.clients))
    if live is not None:
        names |= dict.fromkeys((*live.clients, *(live.connected or {})))
    return {name: _row(name, history, live) for name in names}


def _row(name: str, history: History, live: LiveState | None) -> dict[str, Any]:
    past = history.clients.get(name, NEVER_ASKED)
    state = _last_state(past)
    reason = past.dropped or past.note
    present = LiveClient()
    since = 0.0
    rate = None
    if live is not None:
        present = _present(name, history, live)
        state, reason = _live_state(name, present, past, live, history)
        since = present.since
        if state == "training":
            rate = _rate(present, live)
        if live.connected is not None and name in live.connected:
            since = live.connected[name]
    return {
        "name": name,
        "state": state,
        "reason": reason or "",
        "steps": present.steps,
        "planned": present.planned,
        "rate": _short(rate or past.images_per_s),
        "loss": _short(past.loss),
        "divergence": _short(past.divergence),
        "since": round(since, 1),
        "round": past.round,
        "asked": past.asked,
        "drops": past.drops,
        "problem": _is_problem(state, past),
    }


def _is_problem(state: str, past: ClientHistory) -> bool:
    """True for a client that is dropped or offline, was dropped last, or was not used as sent."""
    if state == "replied":
        return past.note is not None
    return state in PROBLEMS or past.dropped is not None


def _last_state(past: ClientHistory) -> str:
    """Return the state of a client between rounds."""
    if not past.round:
        return "idle"
    return "replied" if past.dropped is None else "dropped"


def _present(name: str, history: History, live: LiveState) -> LiveClient:
    """Return a client's part in the round under way; an empty one if that round is finished."""
    if live.round <= history.rounds:
        return LiveClient()
    return live.clients.get(name, LiveClient())


def _live_state(
    name: str, present: LiveClient, past: ClientHistory, live: LiveState, history: History
) -> tuple[str, str | None]:
    """Return a client's state while a process trains, and the reason for it."""
    asked = name in live.clients and live.round > history.rounds
    reason = past.note
    if past.dropped is not None:
        reason = f"round {past.round}: {past.dropped}"
    if asked and present.state == "failed":
        return "dropped", present.reason
    if asked and present.state == "replied":
        return "replied", past.note
    if live.connected is not None and name not in live.connected:
        return "offline", "its node is not connected"
    if asked:
        return present.state, reason
    if live.round > history.rounds:
        return "idle", reason
    return _last_state(past), past.dropped or past.note


def _rate(present: LiveClient, live: LiveState) -> float | None:
    """Return the images per second of a client in training; None before its first step."""
    seconds = live.changed - present.since
    if not present.images or seconds <= 0:
        return None
    return present.images / seconds


def _short(value: float | None) -> float | None:
    """Return a number with few digits, so that pages need little data."""
    return None if value is None else float(f"{value:.{DIGITS}g}")
