"""The state of a run, and the rows of its clients, from its files and its lock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from watched_runs import client_line, dropped_line, encoded, round_line

from fedssl.pages.live.client_rows import client_rows
from fedssl.pages.live.history import History
from fedssl.pages.live.page_state import count_states, page_state
from fedssl.pages.live.run_facts import Facts, Results, Signs
from fedssl.pages.live.run_status import run_status
from fedssl.runs.live_file import LiveClient, LiveState, Phase

NOW = 1000.0
FACTS = Facts("fedema × byol on cifar10", rounds=4)


def _history(rounds: int) -> History:
    history = History()
    history.add_lines(encoded(*(round_line(number) for number in range(1, rounds + 1))))
    return history


def _live(phase: Phase = "training", round: int = 1, **changes: Any) -> LiveState:
    state = LiveState(phase, started=900.0, changed=999.0, round=round, rounds=4)
    return state._replace(round_started=990.0)._replace(**changes)


def _signs(live: LiveState | None = None, **changes: Any) -> Signs:
    """Return the signs of a process that wrote its file a second ago."""
    signs = Signs(True, locked=True, lock_time=900.0, live=live, live_time=999.0)
    return signs._replace(**changes)


RESULTS = Results(4, budget_spent=False, verdict="better than chance")
STATES = {
    "no directory": (0, Signs(exists=False), "waiting"),
    "nothing started": (0, Signs(exists=True), "waiting"),
    "images are read": (0, _signs(), "waiting"),
    "clients join": (0, _signs(_live("joining", round=0, expected=3, connected={})), "waiting"),
    "first round is prepared": (0, _signs(_live(round=0)), "waiting"),
    "first round": (0, _signs(_live()), "training"),
    "probe": (0, _signs(_live("measuring")), "measuring"),
    "stopping": (1, _signs(_live("stopped")), "stopped"),
    "a silent process": (1, _signs(_live(round=2), live_time=930.0), "stalled"),
    "no news": (1, _signs(_live(round=2, changed=870.0)), "stalled"),
    "no news in the first round yet": (0, _signs(_live(changed=870.0)), "training"),
    "resumed, with the file of a dead process": (1, _signs(_live(), live_time=899.0), "waiting"),
    "final measurements": (4, _signs(), "measuring"),
    "final measurements after a spent budget": (
        2,
        _signs(_live("trained", round=2), live_time=899.0),
        "measuring",
    ),
    "finished": (4, Signs(True, results=RESULTS), "finished"),
    "measured again": (4, _signs(results=RESULTS), "measuring"),
    "spent budget": (2, Signs(True, results=RESULTS._replace(budget_spent=True)), "finished"),
    "prolonged and stopped": (5, Signs(True, results=RESULTS._replace(rounds=2)), "stopped"),
    "stopped": (2, Signs(True, live=_live("stopped", round=3)), "stopped"),
    "stopped by an earlier version": (2, Signs(True), "stopped"),
    "failed": (2, Signs(True, live=_live("failed", round=3, reason="no disk")), "failed"),
    "killed": (2, Signs(True, live=_live(round=3), live_time=999.0), "died"),
    "killed while clients join": (0, Signs(True, live=_live("joining")), "died"),
}


@pytest.mark.parametrize(("rounds", "signs", "state"), STATES.values(), ids=STATES.keys())
def test_the_state_of_a_run(rounds: int, signs: Signs, state: str) -> None:
    assert run_status(FACTS, _history(rounds), signs, NOW).state == state


def test_long_rounds_stall_later() -> None:
    """After rounds of 100 s, a run has stalled if nothing happens for the time of three rounds."""
    history = History()
    history.add_lines(encoded(round_line(1, seconds=100.0)))
    for silence, state in ((299.0, "training"), (301.0, "stalled")):
        signs = _signs(_live(round=2, changed=NOW - silence))
        assert run_status(FACTS, history, signs, NOW).state == state


def _head(history: History, signs: Signs, **changes: Any) -> dict[str, Any]:
    return page_state(Path("/runs/demo"), FACTS._replace(**changes), history, signs, 0, NOW)


def test_the_head_of_a_run_in_training() -> None:
    """One round of 10 s is done; the second began 10 s ago, and 30 images were seen until 999."""
    clients = {"a": LiveClient("training", 995.0, 3, 5, 24), "b": LiveClient("replied", images=6)}
    live = _live(round=2, clients=clients, replied=1, ends=1030.0)
    head = _head(_history(1), _signs(live))
    assert head["title"] == "demo"
    assert (head["finished"], head["round"], head["rounds"], head["in_round"]) == (1, 2, 4, True)
    assert (head["replied"], head["asked"]) == (1, 2)
    assert (head["elapsed"], head["remaining"]) == (20.0, 30.0)
    assert head["images_per_s"] == 30 / 9


def test_without_an_estimate_the_time_left_is_that_of_the_rounds_left() -> None:
    """Three rounds of 10 s."""
    assert _head(_history(1), _signs(_live(round=2)))["remaining"] == 30.0
    assert _head(_history(1), Signs(True))["remaining"] is None


def test_between_rounds_the_last_one_counts() -> None:
    """live.json may still show round 1 when its line is in the log already."""
    head = _head(_history(1), _signs(_live(round=1)))
    assert (head["in_round"], head["round"], head["elapsed"]) == (False, 1, 10.0)


def test_warnings_name_their_rounds() -> None:
    history = _history(1)
    history.add_lines([*encoded(round_line(2, failed=True, warning="features are sent")), b"x\n"])
    warnings = _head(history, Signs(True))["warnings"]
    assert [warning["round"] for warning in warnings] == [0, 2, 0]
    assert warnings[0]["text"] == "features are sent"
    assert "rounds.jsonl is damaged (lines: 1)" in warnings[2]["text"]


def _rows(history: History, signs: Signs, **changes: Any) -> dict[str, dict[str, Any]]:
    return client_rows(FACTS._replace(**changes), history, signs)


def test_clients_of_the_round_under_way() -> None:
    history = _history(1)
    clients = {
        "a": LiveClient("training", 995.0, 3, 5, 24),
        "b": LiveClient("failed", 996.0, reason="out of memory"),
        "c": LiveClient(),
    }
    rows = _rows(history, _signs(_live(round=2, clients=clients)), clients=("a", "b", "c", "d"))
    assert {name: row["state"] for name, row in rows.items()} == {
        "a": "training",
        "b": "dropped",
        "c": "waiting",
        "d": "idle",
    }
    assert (rows["a"]["steps"], rows["a"]["planned"], rows["a"]["rate"]) == (3, 5, 6.0)
    assert rows["b"]["reason"] == "out of memory"
    assert rows["b"]["rate"] == 20.0  # of its last round
    assert count_states(rows) == {
        "training": 1,
        "dropped": 1,
        "waiting": 1,
        "idle": 1,
        "problem": 1,
    }


def test_clients_whose_nodes_are_gone_are_offline() -> None:
    """A client that has replied is done with the round, wherever its node is."""
    clients = {"a": LiveClient("training", 995.0), "b": LiveClient("replied", 996.0)}
    live = _live(round=2, clients=clients, connected={"c": 998.5})
    rows = _rows(_history(1), _signs(live))
    assert {name: row["state"] for name, row in rows.items()} == {
        "a": "offline",
        "b": "replied",
        "c": "idle",
    }
    assert rows["c"]["since"] == 998.5
    assert rows["a"]["problem"]


def test_without_a_process_clients_have_the_outcome_of_their_last_round() -> None:
    history = History()
    line = round_line(1, client_line("a", loss=0.123456789), dropped_line("b", "too few images"))
    history.add_lines(encoded(line))
    stale = _live(round=2, clients={"a": LiveClient("training", 995.0)})
    rows = _rows(history, Signs(True, live=stale))
    assert (rows["a"]["state"], rows["a"]["loss"], rows["a"]["problem"]) == (
        "replied",
        0.12346,
        False,
    )
    assert (rows["b"]["state"], rows["b"]["reason"], rows["b"]["drops"]) == (
        "dropped",
        "too few images",
        1,
    )


def test_a_client_that_was_dropped_last_stays_a_problem_until_it_replies() -> None:
    history = History()
    history.add_lines(encoded(round_line(1, dropped_line("a", "NaN"), client_line("b"))))
    for state, problem in (("waiting", True), ("training", True), ("replied", False)):
        live = _live(round=2, clients={"a": LiveClient(state), "b": LiveClient(state)})
        rows = _rows(history, _signs(live))
        assert (rows["a"]["problem"], rows["b"]["problem"]) == (problem, False)
    waiting = _live(round=2, clients={"a": LiveClient()})
    assert _rows(history, _signs(waiting))["a"]["reason"] == "round 1: NaN"


def test_a_round_that_is_logged_decides_over_live_json() -> None:
    """The guard may drop an upload after the client has replied."""
    history = History()
    history.add_lines(encoded(round_line(1, dropped_line("a", "its update is too large"))))
    live = _live(round=1, clients={"a": LiveClient("replied", 995.0)})
    assert _rows(history, _signs(live))["a"]["state"] == "dropped"
